#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# deb.sh FOLDER
#
# Writes Debian packages for the architecture of the build machine into FOLDER: libattn1,
# libattn-dev, libvgpu0, attest and python3-attn. Each is a component of cmake/install.cmake; a
# library's package is named after its soname. They are built in build-deb/ with Debian's hardening
# flags. Kernels in ATTN_KERNEL_CACHE are not compiled again. DEBFULLNAME and DEBEMAIL name the
# maintainer.
#
# Invariant: lintian, if installed, reports no error or warning except those that a package
# overrides with a reason. The same sources give the same bytes.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
build=$root/build-deb
stage=$build/stage
mkdir -p "$build"
log=$build/deb.log
maintainer="${DEBFULLNAME:-attest maintainers} <${DEBEMAIL:-maintainers@localhost.localdomain}>"
architecture=$(dpkg --print-architecture)
libdir=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600}
export SOURCE_DATE_EPOCH

cd "$root"
# No -g: the packages are stripped, but stripping would damage libattn.a.
flags=$(dpkg-buildflags --get CFLAGS | sed 's/-g //; s/-ffile-prefix-map=[^ ]*//')
{
    CFLAGS="$flags $(dpkg-buildflags --get CPPFLAGS)" \
        LDFLAGS="$(dpkg-buildflags --get LDFLAGS) -Wl,-z,now" cmake -B "$build" \
        -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 \
        -DCMAKE_SKIP_INSTALL_RPATH=ON -DBUILD_TESTING=OFF -DATTN_STATIC=ON -DATTN_MPI=OFF \
        -DATTN_PYTHON_DIR=lib/python3/dist-packages &&
        cmake --build "$build" --parallel "${JOBS:-$(nproc)}"
} >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    exit 1
}
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:.*=//p' "$build/CMakeCache.txt")
rm -rf "$stage"
rm -f "$out"/*.deb

# package NAME COMPONENT ARCHITECTURE SECTION DEPENDS SUMMARY, with the description on standard
# input: stages the component, adds the files that Debian's policy requires, and builds the package.
package() {
    name=$1 folder=$stage/$1 depends=$5
    DESTDIR=$folder cmake --install "$build" --component "$2" --strip >>"$log"
    doc=$folder/usr/share/doc/$name
    mkdir -p "$doc" "$folder/DEBIAN"
    cat >"$doc/copyright" <<TEXT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: attn

Files: *
Copyright: 2026 the authors of attest and libattn
License: Apache-2.0
 The full text is in /usr/share/common-licenses/Apache-2.0 on Debian systems.
TEXT
    gzip -9n >"$doc/changelog.gz" <<TEXT
attn ($version) unstable; urgency=medium

  * Packages of this release.

 -- $maintainer  $(date -uRd "@$SOURCE_DATE_EPOCH")
TEXT
    find "$folder/usr/share" -path '*/man/*' -type f -exec gzip -9nf {} +
    overrides "$name" >"$build/overrides"
    if [ -s "$build/overrides" ]; then
        mkdir -p "$folder/usr/share/lintian/overrides"
        cp "$build/overrides" "$folder/usr/share/lintian/overrides/$name"
    fi

    # Dependencies of its programs and libraries; DEPENDS names those among these packages.
    binaries=$(find "$folder/usr/bin" "$folder/$libdir" -maxdepth 1 -type f \( -name attest -o -name '*.so*' \) \
        2>/dev/null || true)
    if [ -n "$binaries" ]; then
        mkdir -p "$build/shlibdeps/debian"
        touch "$build/shlibdeps/debian/control"
        # shellcheck disable=SC2086 # a list of words
        needs=$(cd "$build/shlibdeps" && dpkg-shlibdeps -O --ignore-missing-info \
            -l"$stage/libattn1/$libdir" -l"$stage/libvgpu0/$libdir" $binaries 2>>"$log" |
            sed 's/^shlibs:Depends=//')
        depends=$needs${depends:+, $depends}
    fi
    case $name in
    lib*[0-9])
        echo "${name%[0-9]} ${name##*[!0-9]} $name (>= $version)" >"$folder/DEBIAN/shlibs"
        echo "activate-noawait ldconfig" >"$folder/DEBIAN/triggers"
        ;;
    python3-*) # bytecode is compiled and removed with the package
        printf '#!/bin/sh\nset -e\nif command -v py3compile >/dev/null; then py3compile -p %s; fi\n' "$name" \
            >"$folder/DEBIAN/postinst"
        printf '#!/bin/sh\nset -e\nif command -v py3clean >/dev/null; then py3clean -p %s; fi\n' "$name" \
            >"$folder/DEBIAN/prerm"
        chmod 755 "$folder/DEBIAN/postinst" "$folder/DEBIAN/prerm"
        ;;
    esac
    (cd "$folder" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$folder/DEBIAN/md5sums"
    {
        printf '%s\n' "Package: $name" "Source: attn" "Version: $version" "Architecture: $3" \
            "Maintainer: $maintainer" "Installed-Size: $(du -ks --exclude=DEBIAN "$folder" | cut -f 1)" \
            ${depends:+"Depends: $depends"} "Section: $4" "Priority: optional"
        case $name in lib*) echo "Multi-Arch: same" ;; esac
        case $name in python3-*) echo "Recommends: python3-numpy" ;; esac
        echo "Description: $6"
        sed 's/^/ /'
    } >"$folder/DEBIAN/control"
    chmod -R go=rX,u+rw "$folder"
    dpkg-deb --root-owner-group --build "$folder" "$out" >>"$log"
}

# overrides NAME: lintian tags that do not apply, with reasons.
overrides() {
    case $1 in
    attest)
        cat <<'TEXT'
# A module that libattn opens by its name, not a library to link with.
attest: sharedobject-in-library-directory-missing-soname [usr/lib/*/libattn_ptx.so]
# It has data alone, PTX, and calls nothing.
attest: shared-library-lacks-prerequisites [usr/lib/*/libattn_ptx.so]
# Machine code of GPUs, with planted faults that `attest sanitize` must find.
attest: binary-from-other-architecture [usr/libexec/attest/faults/*]
attest: statically-linked-binary [usr/libexec/attest/faults/*]
attest: unstripped-binary-or-object [usr/libexec/attest/faults/*]
TEXT
        ;;
    esac
}

abi=$(sed -n 's/^#define ATTN_ABI \([0-9]*\).*/\1/p' include/attn.h)
same="(= $version)"
package "libattn$abi" library "$architecture" libs "" "fused attention for CPUs and NVIDIA GPUs" <<'TEXT'
Computes O = softmax(scale * Q K^T + bias, masked) V and its gradients: a C
library without a framework or the CUDA runtime. GPU kernels are inside; they
need NVIDIA's driver and nothing else.
TEXT
package libvgpu0 vgpu "$architecture" libs "" "virtual GPU that runs PTX on the CPU" <<'TEXT'
Takes the place of NVIDIA's driver, runs PTX instruction by instruction and
reports races, uninitialised values and accesses out of bounds.
TEXT
package libattn-dev development "$architecture" libdevel "libattn$abi $same, libvgpu0 $same" \
    "fused attention: headers and static library" <<'TEXT'
Headers for C and C++, static library, pkg-config file and CMake package of
libattn, and what links with its virtual GPU.
TEXT
package attest attest "$architecture" science "libattn$abi $same, libvgpu0 $same" \
    "proves GPU kernels on a virtual GPU and on real ones" <<'TEXT'
Runs CUDA kernels on a virtual GPU under race and memory checkers, compares
attention with a double-precision reference, and times verified outputs only.
TEXT
package python3-attn python all python "python3:any (>= 3.9), libattn$abi (>= $version)" \
    "fused attention for NumPy, PyTorch and DLPack arrays" <<'TEXT'
attn.attention for NumPy and DLPack arrays, attn.torch as PyTorch's
scaled_dot_product_attention, attn.transformers for Hugging Face's models.
TEXT

ls -l "$out"/*.deb
if command -v lintian >/dev/null; then
    suppressed= # without DEBEMAIL there is no address to check
    [ -n "${DEBEMAIL:-}" ] || suppressed=bogus-mail-host,bogus-mail-host-in-debian-changelog
    lintian --fail-on error,warning --allow-root ${suppressed:+--suppress-tags $suppressed} "$out"/*.deb
fi
