set -u
export PATH=/usr/local/cuda/bin:$PATH
date
cmake --preset dev >/dev/null; cmake --build build -j16 2>&1 | grep -E "error|warning:|100%" | tail -3
date; ls -laL build/libattn*.so
for f in plan_time maps; do gcc -O2 -Iinclude lab/$f.c build/libattn.so -Wl,-rpath,$PWD/build -o build/$f; done
build/plan_time cuda; build/plan_time; build/maps
build/tests/example_decode cuda
timeout 170 build/attest parity --device cuda > $OUT/parity.txt 2>&1; echo parity rc $?; tail -5 $OUT/parity.txt; date
p="python3 python/peers.py --lib build/libattn.so --quick --peers flash,cudnn --dtype fp16"
$p --grid small full --json $OUT/fp16.json --limit 200 > $OUT/fp16.txt 2>&1; echo rc $?; date
$p --grid middle --json $OUT/middle.json --limit 80 > $OUT/middle.txt 2>&1; echo rc $?
$p --grid decode --json $OUT/decode.json --limit 60 > $OUT/decode.txt 2>&1; echo rc $?; date
