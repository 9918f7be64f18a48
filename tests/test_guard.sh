#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_guard.sh - proves that no script of the tree stops, restarts or deletes a machine: one that is
# rented by the hour must outlive whatever runs on it, and is given back by those who rented it.
#
# usage: test_guard.sh SOURCE_DIR [BUILD_DIR]
#
# Commands of the system, of clouds and of their libraries are looked for in shell, Python, YAML, Make
# and CMake, also where they are quoted or behind sudo; comments are left out. First each of them is
# planted in a tree of its own and must be found there, and what only looks like one must not.
#
# Invariant: a list of what is forbidden; this file, which holds it, is the only one not looked at.
set -u

source=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# One extended expression a line. START and END stand for what separates words of a command.
patterns() {
    sed -e 's/START/(^|[[:space:];\&|(`"'\''=\/])/g' -e "s/END/([[:space:];\\&|)\`\"',]|\$)/g" <<'PATTERNS'
START(shutdown|poweroff|reboot|halt)END
START(tel)?init[[:space:]]+[06]END
STARTsystemctl[[:space:]].*(poweroff|reboot|halt|kexec|suspend|hibernate|hybrid-sleep)
STARTloginctl[[:space:]].*(poweroff|reboot|halt|suspend|hibernate)
/proc/sysrq-trigger|/sys/power/state
STARTkill[[:space:]].*[[:space:]]-?1END
STARTnvidia-smi[[:space:]].*(--gpu-reset|-r)END
STARTgcloud[[:space:]].*(delete|stop|suspend|reset)END
STARTaws[[:space:]].*(terminate-|stop-|delete-|reboot-|hibernate)
STARTaz[[:space:]].*(delete|deallocate|stop|restart)END
STARTvast(ai)?[[:space:]].*(destroy|stop|reboot)END
STARTrunpodctl[[:space:]].*(stop|remove|delete|terminate)END
STARTlambda(-cloud|labs|ctl)?[[:space:]].*(terminate|delete|stop|restart|rm)END
instance-operations/(terminate|restart)
START(doctl|hcloud|linode-cli|openstack|oci|ibmcloud|scw|vultr-cli|fly|flyctl|paperspace|gradient|sky|multipass|coreweave|crusoe|brev|modal|exo|upctl)[[:space:]].*(delete|destroy|terminate|stop|shutdown|poweroff|power-off|reboot|down|rm)END
START(terraform|tofu|pulumi)[[:space:]].*(destroy|down)END
STARTkubectl[[:space:]].*(delete|drain)END
STARTvirsh[[:space:]].*(destroy|shutdown|undefine|reboot)END
STARTVBoxManage[[:space:]].*(poweroff|unregistervm|acpipowerbutton)
START(gh[[:space:]]+codespace)[[:space:]].*(delete|stop)END
(terminate|stop|delete|reboot)_(instances?|pods?|vm|droplet|machine)[[:space:]]*\(
begin_(delete|deallocate|power_off|restart)[[:space:]]*\(
instances\(\)\.(delete|stop|suspend|reset)
(os|libc)\.reboot|RB_POWER_OFF
PATTERNS
}
patterns >"$work/patterns"

# Every script: by its name, or by its first line.
scripts() {
    (cd "$1" && find . \( -name 'build*' -o -name '*venv*' -o -name __pycache__ -o -name .git \
        -o -path ./results -o -path ./tests/data -o -path ./tests/test_guard.sh \) -prune -o -type f -print |
        while IFS= read -r file; do
            case $file in
            *.sh | *.py | *.yml | *.yaml | *.cmake | *Makefile | *CMakeLists.txt | *.mk | *.bash | *.toml) echo "$file" ;;
            *.c | *.h | *.cu | *.def | *.md | *.json | *.txt) ;;
            *) if [ "$(head -c 2 "$file")" = '#!' ]; then echo "$file"; fi ;;
            esac
        done)
}

# The lines that stop a machine, as FILE:LINE:TEXT. Comments become empty, so that numbers hold.
offences() {
    scripts "$1" | while IFS= read -r file; do
        sed 's/^[[:space:]]*#.*//' "$1/$file" | grep -nEf "$work/patterns" | sed "s|^|${file#./}:|"
    done
}

# ---- the guard itself ----------------------------------------------------------------------------

failures=0
planted=0

# plant FILE LINE: it must be found there, on line 2.
plant() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/$(dirname "$1")"
    printf '%s\n%s\n' '#!/bin/sh' "$2" >"$work/tree/$1"
    planted=$((planted + 1))
    offences "$work/tree" | grep -q "^$1:2:" || {
        echo "FAIL: not found in $1: $2"
        failures=$((failures + 1))
    }
}

# harmless FILE LINE: it must not be found.
harmless() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/$(dirname "$1")"
    printf '%s\n%s\n' '#!/bin/sh' "$2" >"$work/tree/$1"
    if [ -n "$(offences "$work/tree")" ]; then
        echo "FAIL: refused in $1: $2"
        failures=$((failures + 1))
    fi
}

plant a.sh 'shutdown -h now'
plant a.sh 'make bench && sudo shutdown +5'
plant a.sh 'trap "sudo poweroff" EXIT'
plant a.sh '/sbin/reboot'
plant a.sh 'ssh host halt'
plant a.sh 'ssh host "make test; shutdown now"'
plant a.sh 'init 0'
plant a.sh 'sudo -n systemctl --force poweroff'
plant a.sh 'systemctl reboot'
plant a.sh 'loginctl poweroff'
plant a.sh 'echo o >/proc/sysrq-trigger'
plant a.sh 'echo mem > /sys/power/state'
plant a.sh 'kill -9 -1'
plant a.sh 'nvidia-smi --gpu-reset -i 0'
plant tools/up.sh 'gcloud compute instances delete gpu-1 --quiet'
plant tools/up.sh 'gcloud compute instances stop "$NAME"'
plant tools/up.sh 'aws ec2 terminate-instances --instance-ids i-1'
plant tools/up.sh 'aws ec2 stop-instances --instance-ids i-1'
plant tools/up.sh 'aws cloudformation delete-stack --stack-name gpu'
plant tools/up.sh 'az vm deallocate -g lab -n gpu'
plant tools/up.sh 'az group delete --name lab'
plant tools/up.sh 'vastai destroy instance 123'
plant tools/up.sh 'vast stop instance 123'
plant tools/up.sh 'runpodctl remove pod abc'
plant tools/up.sh 'runpodctl stop pod abc'
plant tools/up.sh 'lambda cloud instances terminate x'
plant tools/up.sh 'curl -X POST https://cloud/api/v1/instance-operations/terminate'
plant tools/up.sh 'doctl compute droplet delete 1'
plant tools/up.sh 'hcloud server poweroff gpu'
plant tools/up.sh 'openstack server delete gpu'
plant tools/up.sh 'oci compute instance terminate --instance-id x'
plant tools/up.sh 'sky down cluster'
plant tools/up.sh 'terraform destroy -auto-approve'
plant tools/up.sh 'kubectl delete node gpu-1'
plant tools/up.sh 'virsh destroy gpu'
plant tools/up.sh 'gh codespace delete -c x'
plant bench.py 'os.system("shutdown now")'
plant bench.py 'subprocess.run(["sudo", "poweroff"])'
plant bench.py 'ec2.terminate_instances(InstanceIds=ids)'
plant bench.py 'runpod.terminate_pod(pod)'
plant bench.py 'client.virtual_machines.begin_deallocate(group, name)'
plant bench.py 'compute.instances().delete(project=p).execute()'
plant .github/workflows/ci.yml '      - run: gcloud compute instances stop gpu'
plant .ci/run 'step done sudo poweroff'
plant Makefile '	ssh gpu sudo shutdown now'
plant cmake/x.cmake 'execute_process(COMMAND poweroff)'
plant run-on-gpu 'reboot'

harmless a.sh '# shutdown is what this script never does'
harmless a.sh 'echo stops at the first failure; kill "$pid"'
harmless a.sh 'kill -9 "$child"; kill -- "-$group"'
harmless a.sh 'rm -rf build; cmake --build build --target shutdown_test'
harmless a.sh 'grep -c delete file; docker stop test || git branch --delete x'
harmless bench.py 'executor.shutdown(wait=True)'
harmless bench.py 'sock.shutdown(socket.SHUT_RDWR)'
harmless bench.py 'torch.cuda.synchronize(); rows.delete(0)'
harmless a.md 'shutdown -h now'
harmless Makefile '	nvidia-smi -q; aws s3 cp x y; gcloud compute instances list'

# ---- the tree ------------------------------------------------------------------------------------

count=$(scripts "$source" | wc -l)
if [ "$count" -lt 10 ]; then
    echo "FAIL: only $count scripts in $source"
    failures=$((failures + 1))
fi
found=$(offences "$source")
if [ -n "$found" ]; then
    echo "$found" | sed 's/^/FAIL: stops a machine: /'
    failures=$((failures + 1))
fi
echo "$planted planted, $count scripts, $failures failed"
[ "$failures" -eq 0 ]
