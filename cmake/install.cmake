# SPDX-License-Identifier: Apache-2.0
#
# `cmake --install`: headers, library, program, man pages, completion, pkg-config file and CMake
# package (attn::attn, attn::attn_static, with MPI attn::attn_mpi); the virtual GPU's library and header, and the PTX that it
# runs; kernels with planted faults for attest. Components are the packages of cmake/deb.sh.
#
# Invariant: the installed files find each other by relative paths, so that --prefix and DESTDIR may
# be chosen at install time and the tree may be moved. (Absolute CMAKE_INSTALL_*DIRs are kept.)

include(CMakePackageConfigHelpers)

set(ATTN_PYTHON_DIR "" CACHE STRING "Install the Python package there (lib/python3/dist-packages)")

install(FILES include/attn.h include/attn.hpp include/attn_inspect.h include/attn_verify.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(TARGETS attn EXPORT attnTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        COMPONENT library NAMELINK_COMPONENT development)
if(ATTN_STATIC)
    install(TARGETS attn_static EXPORT attnTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
            COMPONENT development)
endif()
if(TARGET attn_ptx) # the library looks for it in its own folder; only attest and the tests need it
    install(TARGETS attn_ptx LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attest)
endif()
if(TARGET attn_mpi) # its own export: a user without MPI gets attn::attn all the same
    install(FILES include/attn_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT mpi)
    install(TARGETS attn_mpi EXPORT attnMpiTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            COMPONENT mpi)
endif()
if(TARGET vgpu)
    install(FILES vgpu/vgpu.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
    install(TARGETS vgpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            COMPONENT vgpu NAMELINK_COMPONENT development)
    # attest exec looks for them below the folder of libvgpu.so.
    install(TARGETS vgpu_runtime vgpu_cuda vgpu_nvrtc
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/vgpu COMPONENT vgpu)
endif()
if(TARGET attest)
    install(TARGETS attest RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT attest)
    if(ATTN_KERNELS_BUILT) # attest looks for them beside itself, or there
        install(DIRECTORY ${PROJECT_BINARY_DIR}/faults DESTINATION libexec/attest COMPONENT attest
                FILES_MATCHING PATTERN "*.cubin" PATTERN "*.ptx")
    endif()
endif()
if(ATTN_PYTHON_DIR)
    install(DIRECTORY python/attn DESTINATION ${ATTN_PYTHON_DIR} COMPONENT python
            PATTERN __pycache__ EXCLUDE)
endif()

# Man pages and completion, from attest --help and the headers: where attest runs on this machine,
# and fast.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_FOUND AND TARGET attest AND NOT CMAKE_CROSSCOMPILING AND NOT ATTN_SANITIZE)
    set(man_folder ${PROJECT_BINARY_DIR}/man)
    set(pages ${man_folder}/attest.1 ${man_folder}/attn.3 ${man_folder}/attest.bash)
    set(headers include/attn.h include/attn_inspect.h include/attn_verify.h include/attn_mpi.h)
    add_custom_command(
        OUTPUT ${pages}
        COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/docs/man.py $<TARGET_FILE:attest>
                ${man_folder}
        COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/docs/completion.py $<TARGET_FILE:attest>
                ${man_folder}/attest.bash
        DEPENDS attest docs/man.py docs/completion.py docs/api.py ${headers}
        COMMENT "Writing attest(1), attn(3) and the completion of attest"
        VERBATIM)
    add_custom_target(man ALL DEPENDS ${pages})
    install(FILES ${man_folder}/attest.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT attest)
    install(FILES ${man_folder}/attn.3 DESTINATION ${CMAKE_INSTALL_MANDIR}/man3
            COMPONENT development)
    install(FILES ${man_folder}/attest.bash RENAME attest COMPONENT attest
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endif()

if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
    set(pc_prefix ${CMAKE_INSTALL_PREFIX})
    set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
    set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
    file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(REGEX REPLACE "/$" "" up ${up})
    set(pc_prefix "\${pcfiledir}/${up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/attn.pc.in attn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT development)
if(TARGET attn_mpi)
    configure_file(cmake/attn_mpi.pc.in attn_mpi.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/attn_mpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
            COMPONENT mpi)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
configure_package_config_file(cmake/attnConfig.cmake.in attnConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(attnConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${package_dir} COMPONENT development)
if(TARGET attn_mpi)
    install(EXPORT attnMpiTargets NAMESPACE attn:: DESTINATION ${package_dir} COMPONENT mpi)
endif()

# What `make install` needs: neither tests nor examples.
add_custom_target(installed)
foreach(target attn attn_static attn_ptx attn_mpi attest vgpu vgpu_runtime vgpu_cuda vgpu_nvrtc man
        fault_kernels)
    if(TARGET ${target})
        add_dependencies(installed ${target})
    endif()
endforeach()
