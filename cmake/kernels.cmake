# SPDX-License-Identifier: Apache-2.0
#
# Kernels for NVIDIA GPUs: one run of cmake/compile_kernel.sh for each CUDA_VARIANT line of
# src/kernels/variants.def, of the source that families.def names; the results are embedded in the
# library and its companion (src/cuda/images.h).
#
# Invariant: the library has the same functions with and without nvcc; without, or with a filter,
# the table of images is shorter. If nvcc is missing, one line says so here, and one in the table.

set(ATTN_KERNELS AUTO CACHE STRING "Kernels for NVIDIA GPUs: ON, OFF, or AUTO (if nvcc is found)")
set_property(CACHE ATTN_KERNELS PROPERTY STRINGS AUTO ON OFF)
set(ATTN_VARIANTS "" CACHE STRING "Build only kernels with this regular expression in their name")
option(ATTN_ONE_OF_EACH "Of each family, build only the first of these kernels" OFF)
set(ATTN_PORTABLE_ARCHS "80;90" CACHE STRING "Machine code of portable kernels is for these sm_XX")
option(ATTN_PTX_LINES "Keep line tables in the PTX that a virtual GPU runs" ON)
option(ATTN_KERNEL_DEBUG "Kernels with device asserts and line tables in their machine code" OFF)

set(nvcc_needed 12.0)
set(nvcc_advice "install the CUDA toolkit (${nvcc_needed} or newer) or pass -DATTN_NVCC=PATH")
set(kernel_folder ${PROJECT_BINARY_DIR}/kernels)

# ---- the compiler ----------------------------------------------------------------------------

# Sets ATTN_PTXAS, ATTN_FATBINARY and ATTN_NVCC_VERSION; `missing` becomes the end of a sentence, or
# "" if kernels can be built. ATTN_NVCC may be set by the user, and is then the only one that is tried.
function(attn_find_nvcc missing)
    find_program(ATTN_NVCC NAMES $ENV{CUDACXX} nvcc
                 PATHS /usr/local/cuda/bin ${PROJECT_SOURCE_DIR}/build-nvcc/nvidia/cu13/bin
                 DOC "NVIDIA's compiler")
    if(NOT ATTN_NVCC)
        set(${missing} "nvcc was not found" PARENT_SCOPE)
        return()
    endif()
    execute_process(COMMAND ${ATTN_NVCC} --version OUTPUT_VARIABLE said ERROR_QUIET
                    RESULT_VARIABLE failed)
    if(failed OR NOT said MATCHES "release ([0-9]+\\.[0-9]+)[^\n]*V([0-9.]+)")
        set(${missing} "${ATTN_NVCC} is no working nvcc" PARENT_SCOPE)
        return()
    endif()
    set(version ${CMAKE_MATCH_2})
    if(version VERSION_LESS nvcc_needed)
        set(${missing} "nvcc ${version} is older than ${nvcc_needed}" PARENT_SCOPE)
        return()
    endif()

    get_filename_component(folder ${ATTN_NVCC} DIRECTORY)
    get_filename_component(real_folder ${ATTN_NVCC} REALPATH)
    get_filename_component(real_folder ${real_folder} DIRECTORY)
    foreach(program ptxas fatbinary)
        find_program(${program} ${program} PATHS ${folder} ${real_folder} NO_DEFAULT_PATH NO_CACHE)
        if(NOT ${program})
            set(${missing} "there is no ${program} beside ${ATTN_NVCC}" PARENT_SCOPE)
            return()
        endif()
    endforeach()

    # It may lack a host compiler, or refuse the one that is there. Once for each compiler.
    if(NOT ATTN_NVCC_WORKS STREQUAL "${ATTN_NVCC} ${version}")
        set(try_folder ${PROJECT_BINARY_DIR}/CMakeFiles/nvcc)
        file(WRITE ${try_folder}/try.cu "extern \"C\" __global__ void nothing(void) {}\n")
        execute_process(COMMAND ${ATTN_NVCC} -ptx -arch=compute_80 -std=c++17 -o try.ptx try.cu
                        WORKING_DIRECTORY ${try_folder} OUTPUT_VARIABLE said ERROR_VARIABLE said
                        RESULT_VARIABLE failed)
        if(failed)
            string(REGEX MATCH "[^\n]*(error|fatal)[^\n]*" first_error "${said}")
            set(${missing} "nvcc ${version} cannot compile an empty kernel (${first_error})"
                PARENT_SCOPE)
            return()
        endif()
        set(ATTN_NVCC_WORKS "${ATTN_NVCC} ${version}" CACHE INTERNAL "")
    endif()
    set(ATTN_PTXAS ${ptxas} PARENT_SCOPE)
    set(ATTN_FATBINARY ${fatbinary} PARENT_SCOPE)
    set(ATTN_NVCC_VERSION ${version} PARENT_SCOPE)
    set(${missing} "" PARENT_SCOPE)
endfunction()

# ---- one kernel ------------------------------------------------------------------------------

# attn_compile_kernel(into SOURCE OUTPUT ARCH CUBIN_ARCHS HABITS FLAG...): adds the command, and its
# outputs to the list named first. Arguments as in compile_kernel.sh, but ARCH is sm_80 or sm_90a.
function(attn_compile_kernel into source output arch cubin_archs habits)
    string(REPLACE sm_ compute_ ptx_arch ${arch})
    if(ATTN_KERNEL_DEBUG)
        list(APPEND habits lines)
        list(APPEND ARGN -DATTN_DEBUG=1)
    endif()
    list(JOIN cubin_archs " " cubin_words)
    list(JOIN habits " " habit_words)
    set(files ${output}.ptx)
    foreach(cubin_arch IN LISTS cubin_archs)
        list(APPEND files ${output}.${cubin_arch}.cubin ${output}.${cubin_arch}.log)
    endforeach()
    get_filename_component(name ${output} NAME)
    set(script ${PROJECT_SOURCE_DIR}/cmake/compile_kernel.sh)
    add_custom_command(
        OUTPUT ${files}
        COMMAND sh ${script} ${ATTN_NVCC} ${ATTN_PTXAS} ${source} ${output} ${ptx_arch}
                ${cubin_words} ${habit_words} ${ARGN}
        DEPENDS ${PROJECT_SOURCE_DIR}/${source} ${script} ${kernel_folder}/options.txt
        DEPFILE ${output}.d
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
        COMMENT "Compiling kernel ${name}"
        VERBATIM)
    set(${into} ${${into}} ${files} PARENT_SCOPE)
endfunction()

# attn_compress_image(into IMAGE OUTPUT ARCH MODE): adds the command that makes the fatbin OUTPUT of
# IMAGE. From 12.8 on nvcc has several compressions, before only `speed`, LZ4.
function(attn_compress_image into image output arch mode)
    set(option --compress-mode=${mode})
    if(ATTN_NVCC_VERSION VERSION_LESS 12.8)
        set(option "")
    endif()
    set(script ${PROJECT_SOURCE_DIR}/cmake/compress_image.sh)
    add_custom_command(
        OUTPUT ${output}
        COMMAND sh ${script} ${ATTN_FATBINARY} ${image} ${output} ${arch} ${option}
        DEPENDS ${image} ${script} ${kernel_folder}/options.txt
        COMMENT ""
        VERBATIM)
    set(${into} ${${into}} ${output} PARENT_SCOPE)
endfunction()

# attn_strip_ptx(into PTX OUTPUT): adds the command that makes OUTPUT of PTX, without line tables.
function(attn_strip_ptx into ptx output)
    set(script ${PROJECT_SOURCE_DIR}/cmake/strip_ptx.sh)
    add_custom_command(
        OUTPUT ${output}
        COMMAND sh ${script} ${ptx} ${output}
        DEPENDS ${ptx} ${script}
        COMMENT ""
        VERBATIM)
    set(${into} ${${into}} ${output} PARENT_SCOPE)
endfunction()

# The macros that a kernel is written over.
function(attn_kernel_flags flags entry dtype head_dim block_q block_kv warps stages)
    set(${flags} -DATTN_ENTRY=${entry} -DATTN_DTYPE_${dtype}=1 -DATTN_D=${head_dim}
        -DATTN_BM=${block_q} -DATTN_BN=${block_kv} -DATTN_WARPS=${warps} -DATTN_STAGES=${stages}
        PARENT_SCOPE)
endfunction()

# Each tests/faults/NAME.cu takes the place of one variant: faults/NAME.sm_90.cubin and NAME.ptx.
# They are wrong on purpose, so that warnings are no errors.
function(attn_add_fault_kernels)
    file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
         ${PROJECT_SOURCE_DIR}/tests/faults/*.cu)
    attn_kernel_flags(flags fwd_scalar_fp16_d64_32x64_w4_s2 fp16 64 32 64 4 2)
    set(compiled "")
    foreach(source IN LISTS sources)
        get_filename_component(name ${source} NAME_WE)
        attn_compile_kernel(compiled ${source} ${PROJECT_BINARY_DIR}/faults/${name} sm_80 sm_90
                            lenient ${flags})
    endforeach()
    add_custom_target(fault_kernels ALL DEPENDS ${compiled})
endfunction()

# ---- the tables of images --------------------------------------------------------------------

# For the library and for its companion. A 0 after each file ends what is text. Nothing is exported,
# nothing is executable.
set(images_S [=[
/* Generated by cmake/kernels.cmake. */
#ifdef __CET__
#include <cet.h>
#endif
    .macro image symbol, file
    .balign 16
    .globl \symbol
    .hidden \symbol
    .type \symbol, %object
\symbol:
    .incbin "\file"
    .globl \symbol\()_end
    .hidden \symbol\()_end
    .type \symbol\()_end, %object
    .size \symbol, . - \symbol
\symbol\()_end:
    .byte 0
    .size \symbol\()_end, 1
    .endm

    .section .rodata,"a",%progbits
    image built_in_identity, "@kernel_folder@/identity.txt"
@assembly@
    .section .note.GNU-stack,"",%progbits
]=])

set(images_c [=[
/* Generated by cmake/kernels.cmake. */
#include "cuda/images.h"
#include <stddef.h>

#pragma GCC visibility push(hidden)
@declarations@
#pragma GCC visibility pop

const struct built_in_image built_in_images[] = {
@entries@    {NULL, ATTN_IMAGE_CUBIN, NULL, NULL, NULL, NULL}, /* C has no empty array */
};
const int32_t built_in_image_count = sizeof(built_in_images) / sizeof(built_in_images[0]) - 1;
const char *const built_in_images_missing = "@missing@";
]=])

set(companion_c [=[
/* Generated by cmake/kernels.cmake. */
#include "cuda/images.h"
#include <stddef.h>

#pragma GCC visibility push(hidden)
@declarations@
#pragma GCC visibility pop

static const struct built_in_image images[] = {
@entries@};

extern const struct companion attn_ptx;
__attribute__((visibility("default"))) const struct companion attn_ptx = {
    built_in_identity, images, sizeof images / sizeof images[0]};
]=])

# attn_embed(TABLE number FILE): appends the file to the table's assembly (TABLE is library or
# companion), as the symbol built_in_N, and sets N.
macro(attn_embed table number file)
    math(EXPR embedded "${embedded} + 1")
    set(${number} ${embedded})
    list(APPEND ${table}_files ${file})
    string(APPEND ${table}_assembly "    image built_in_${embedded}, \"${file}\"\n")
endmacro()

# One entry of the table. `log` is an expression in C.
macro(attn_add_image table variant kind arch file log)
    attn_embed(${table} number ${file})
    string(APPEND ${table}_declarations "extern const unsigned char built_in_${number}[], "
           "built_in_${number}_end[];\n")
    string(APPEND ${table}_entries "    {\"${variant}\", ${kind}, \"${arch}\", built_in_${number}, "
           "built_in_${number}_end, ${log}},\n")
endmacro()

macro(attn_add_variant family arch dtype head_dim block_q block_kv warps stages)
    set(variant ${family}_${dtype}_d${head_dim}_${block_q}x${block_kv}_w${warps}_s${stages})
    math(EXPR declared "${declared} + 1")
    if(variant MATCHES "${ATTN_VARIANTS}" AND NOT (ATTN_ONE_OF_EACH AND ${family} IN_LIST families))
        list(APPEND families ${family})
        if(NOT "${arch_of_${family}}" STREQUAL ${arch})
            message(FATAL_ERROR "${definitions}: ${variant} is for ${arch}, families.def says "
                    "\"${arch_of_${family}}\" of its family")
        endif()
        set(source src/kernels/${source_of_${family}})
        set(output ${kernel_folder}/${variant})
        # An architecture with a letter is for one GPU alone: newer ones do not run it.
        set(cubin_archs ${portable_archs})
        if(${arch} MATCHES "[a-z]$")
            set(cubin_archs ${arch})
        endif()
        attn_kernel_flags(flags ${variant} ${dtype} ${head_dim} ${block_q} ${block_kv} ${warps}
                          ${stages})
        attn_compile_kernel(compiled ${source} ${output} ${arch} "${cubin_archs}"
                            release ${flags})
        foreach(cubin_arch IN LISTS cubin_archs)
            attn_embed(library log_number ${output}.${cubin_arch}.log)
            string(APPEND library_declarations "extern const char built_in_${log_number}[];\n")
            # Every driver since 12.0 reads LZ4; Zstandard, which is smaller, only those since 12.4.
            set(fatbin ${output}.${cubin_arch}.fatbin)
            attn_compress_image(compiled ${output}.${cubin_arch}.cubin ${fatbin} ${cubin_arch}
                                speed)
            attn_add_image(library ${variant} ATTN_IMAGE_COMPRESSED_CUBIN ${cubin_arch} ${fatbin}
                           built_in_${log_number})
        endforeach()
        string(REPLACE sm_ compute_ ptx_arch ${arch})
        attn_strip_ptx(compiled ${output}.ptx ${output}.stripped)
        if(NOT ${arch} MATCHES "[a-z]$")
            # A driver that compiles this toolkit's PTX also knows its best compression.
            attn_compress_image(compiled ${output}.stripped ${output}.fatbin ${ptx_arch} size)
            attn_add_image(library ${variant} ATTN_IMAGE_FATBIN ${ptx_arch} ${output}.fatbin NULL)
        endif()
        set(ptx ${output}.stripped)
        if(ATTN_PTX_LINES)
            set(ptx ${output}.ptx)
        endif()
        attn_add_image(companion ${variant} ATTN_IMAGE_PTX ${ptx_arch} ${ptx} NULL)
        math(EXPR built "${built} + 1")
    endif()
endmacro()

# attn_read_families(FILE): sets source_of_FAMILY and arch_of_FAMILY for each entry of families.def.
macro(attn_read_families file)
    file(STRINGS ${file} lines REGEX "^[ \t]*FAMILY\\(")
    foreach(line IN LISTS lines)
        if(NOT line MATCHES "^FAMILY\\(([a-z0-9_]+), \"([a-z0-9_/]+\\.cu)\", (sm_80|sm_[0-9]+a),$")
            message(FATAL_ERROR "${file}: not the first line of a FAMILY: ${line}")
        endif()
        set(source_of_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
        set(arch_of_${CMAKE_MATCH_1} ${CMAKE_MATCH_3})
    endforeach()
endmacro()

# Stops with a sentence if the variable's value is no regular expression: if(MATCHES) would stop with
# one that names neither. CMake cannot test an expression, so a second CMake process does.
function(attn_check_expression name)
    set(script ${PROJECT_BINARY_DIR}/CMakeFiles/expression.cmake)
    file(WRITE ${script} "string(REGEX MATCH \"\${EXPRESSION}\" match \"text\")\n")
    execute_process(COMMAND ${CMAKE_COMMAND} "-DEXPRESSION=${${name}}" -P ${script}
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed AND NOT "${${name}}" STREQUAL "")
        message(FATAL_ERROR "${name} is \"${${name}}\", expected a regular expression of CMake's")
    endif()
endfunction()

# Removes what an earlier run with another filter or compiler has left in kernels/.
function(attn_remove_stale_kernels wanted)
    file(GLOB found ${kernel_folder}/*.cubin ${kernel_folder}/*.log ${kernel_folder}/*.ptx
         ${kernel_folder}/*.stripped ${kernel_folder}/*.fatbin ${kernel_folder}/*.d)
    foreach(file IN LISTS found)
        string(REGEX REPLACE "\\.d$" ".ptx" output ${file})
        if(NOT output IN_LIST wanted)
            file(REMOVE ${file})
        endif()
    endforeach()
endfunction()

# Writes FILE.c and FILE.S of one of the tables; `c` is the text of the former.
function(attn_write_table table file c)
    set(assembly "${${table}_assembly}")
    set(declarations "${${table}_declarations}")
    set(entries "${${table}_entries}")
    file(CONFIGURE OUTPUT ${kernel_folder}/${file}.S CONTENT "${images_S}" @ONLY)
    file(CONFIGURE OUTPUT ${kernel_folder}/${file}.c CONTENT "${c}" @ONLY)
    set_property(SOURCE ${kernel_folder}/${file}.S PROPERTY OBJECT_DEPENDS ${${table}_files}
                 ${kernel_folder}/identity.txt)
endfunction()

# The target attn_ptx, libattn_ptx.so, and identity.txt, which binds it to the library and is added
# to the list named first. No version in its name: the identity says more.
function(attn_add_companion into)
    set(identity ${kernel_folder}/identity.txt)
    add_custom_command(
        OUTPUT ${identity}
        COMMAND sh -c "printf %s \"$(cat \"$@\" | sha256sum | cut -c 1-64)\" >identity.txt"
                identity ${PROJECT_SOURCE_DIR}/src/cuda/images.h ${companion_files}
        DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/images.h ${companion_files}
        WORKING_DIRECTORY ${kernel_folder}
        COMMENT ""
        VERBATIM)
    set(${into} ${${into}} ${identity} PARENT_SCOPE)
    add_library(attn_ptx MODULE ${kernel_folder}/companion.c ${kernel_folder}/companion.S)
    add_dependencies(attn_ptx kernel_images)
    target_include_directories(attn_ptx PRIVATE include src)
    target_compile_options(attn_ptx PRIVATE ${ATTN_C_FLAGS})
    target_link_options(attn_ptx PRIVATE ${ATTN_SHARED_LINK_FLAGS})
    set_target_properties(attn_ptx PROPERTIES LINKER_LANGUAGE C NO_SONAME TRUE)
endfunction()

# attn_add_kernels(sources): adds images.c and images.S to the list named `sources`; the target
# kernel_images builds what they embed. Sets ATTN_KERNELS_BUILT to whether there are any; then
# attn_ptx is the companion.
function(attn_add_kernels sources)
    set(definitions ${PROJECT_SOURCE_DIR}/src/kernels/variants.def)
    set(family_definitions ${PROJECT_SOURCE_DIR}/src/kernels/families.def)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${definitions}
                 ${family_definitions})

    set(missing "it was built with ATTN_KERNELS=OFF")
    if(NOT ATTN_KERNELS MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR "ATTN_KERNELS is ${ATTN_KERNELS}, expected AUTO, ON or OFF")
    elseif(NOT ATTN_KERNELS STREQUAL OFF)
        attn_find_nvcc(missing)
        if(missing AND ATTN_KERNELS STREQUAL ON)
            message(FATAL_ERROR "ATTN_KERNELS is ON, but ${missing}: ${nvcc_advice}")
        elseif(missing)
            message(NOTICE "Kernels for NVIDIA GPUs are left out: ${missing}. To have them, "
                    "${nvcc_advice}.")
            string(REGEX REPLACE "[\"\\\\\n]" "'" missing "${missing} when it was built")
        endif()
    endif()

    # Both are looked at with and without nvcc: a wrong word is wrong on every machine.
    if(ATTN_PORTABLE_ARCHS STREQUAL "")
        message(FATAL_ERROR "ATTN_PORTABLE_ARCHS is empty, expected numbers from 80 (80;90)")
    endif()
    attn_check_expression(ATTN_VARIANTS)
    set(portable_archs "")
    foreach(number IN LISTS ATTN_PORTABLE_ARCHS)
        if(NOT number MATCHES "^[0-9]+$" OR number LESS 80)
            message(FATAL_ERROR "ATTN_PORTABLE_ARCHS has ${number}, expected numbers from 80")
        endif()
        list(APPEND portable_archs sm_${number})
    endforeach()
    list(REMOVE_DUPLICATES portable_archs)
    list(SORT portable_archs COMPARE NATURAL)

    set(declared 0)  # lines of variants.def
    set(built 0)     # of them, what the filters leave
    set(families "") # of these, with repetitions
    set(embedded 0)  # files in both tables
    set(compiled "")
    foreach(table library companion)
        foreach(part files assembly declarations entries)
            set(${table}_${part} "")
        endforeach()
    endforeach()
    attn_read_families(${family_definitions})
    file(STRINGS ${definitions} lines REGEX "^[ \t]*CUDA_VARIANT")
    if(missing)
        set(lines "")
    endif()
    foreach(line IN LISTS lines)
        if(NOT line MATCHES "^CUDA_VARIANT\\(([a-z0-9_]+), (sm_80|sm_[0-9]+a), (fp16|bf16|fp32), \
([0-9]+), ([0-9]+), ([0-9]+), ([0-9]+), ([0-9]+)\\)$")
            message(FATAL_ERROR "${definitions}: not a CUDA_VARIANT that can be built: ${line}")
        endif()
        attn_add_variant(${CMAKE_MATCH_1} ${CMAKE_MATCH_2} ${CMAKE_MATCH_3} ${CMAKE_MATCH_4}
                         ${CMAKE_MATCH_5} ${CMAKE_MATCH_6} ${CMAKE_MATCH_7} ${CMAKE_MATCH_8})
    endforeach()

    if(NOT missing)
        if(built EQUAL 0)
            message(FATAL_ERROR "ATTN_VARIANTS is \"${ATTN_VARIANTS}\", which is in the name of "
                    "none of the ${declared} kernels of ${definitions}")
        endif()
        message(STATUS "Kernels for NVIDIA GPUs: ${built} of ${declared}, "
                "nvcc ${ATTN_NVCC_VERSION} (${ATTN_NVCC})")
    endif()

    attn_remove_stale_kernels("${compiled}")
    # For tests/run.sh: some tests skip where there are none, for whatever reason.
    file(CONFIGURE OUTPUT ${kernel_folder}/built.txt CONTENT "${built}\n" @ONLY)

    # What make cannot see: another compiler, another flag. Written only if its text changes.
    file(CONFIGURE OUTPUT ${kernel_folder}/options.txt @ONLY CONTENT
"nvcc @ATTN_NVCC_VERSION@ @ATTN_NVCC@
archs @portable_archs@
debug @ATTN_KERNEL_DEBUG@
")
    attn_write_table(library images "${images_c}")
    if(missing)
        file(CONFIGURE OUTPUT ${kernel_folder}/identity.txt CONTENT "" @ONLY)
    else()
        attn_write_table(companion companion "${companion_c}")
        attn_add_companion(compiled)
    endif()
    add_custom_target(kernel_images DEPENDS ${compiled})
    set(${sources} ${${sources}} ${kernel_folder}/images.c ${kernel_folder}/images.S PARENT_SCOPE)
    if(missing)
        set(ATTN_KERNELS_BUILT FALSE PARENT_SCOPE)
    else()
        set(ATTN_KERNELS_BUILT TRUE PARENT_SCOPE)
        set(ATTN_PTXAS ${ATTN_PTXAS} PARENT_SCOPE) # for the kernels with planted faults
    endif()
endfunction()
