# SPDX-License-Identifier: Apache-2.0
#
# `cmake --install`: header, library, program, man pages, pkg-config file and CMake package
# (attn::attn); the virtual GPU's library and header, and the PTX that it runs; kernels with planted
# faults for attest.
#
# Invariant: the installed files find each other by relative paths, so that --prefix and DESTDIR may
# be chosen at install time and the tree may be moved. (Absolute CMAKE_INSTALL_*DIRs are kept.)

include(CMakePackageConfigHelpers)

install(FILES include/attn.h include/attn.hpp include/attn_inspect.h include/attn_verify.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS attn EXPORT attnTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET attn_ptx) # the library looks for it in its own folder
    install(TARGETS attn_ptx LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET vgpu)
    install(FILES vgpu/vgpu.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(TARGETS vgpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET attest)
    install(TARGETS attest RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    if(ATTN_KERNELS_BUILT) # attest looks for them beside itself, or there
        install(DIRECTORY ${PROJECT_BINARY_DIR}/faults DESTINATION libexec/attest
                FILES_MATCHING PATTERN "*.cubin" PATTERN "*.ptx")
    endif()
endif()

# Man pages, from attest --help and the headers: where attest runs on this machine, and fast.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_FOUND AND TARGET attest AND NOT CMAKE_CROSSCOMPILING AND NOT ATTN_SANITIZE)
    set(pages ${PROJECT_BINARY_DIR}/man/attest.1 ${PROJECT_BINARY_DIR}/man/attn.3)
    set(headers include/attn.h include/attn_inspect.h include/attn_verify.h)
    add_custom_command(
        OUTPUT ${pages}
        COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/docs/man.py $<TARGET_FILE:attest>
                ${PROJECT_BINARY_DIR}/man
        DEPENDS attest docs/man.py docs/api.py ${headers}
        COMMENT "Writing attest(1) and attn(3)"
        VERBATIM)
    add_custom_target(man ALL DEPENDS ${pages})
    install(FILES ${PROJECT_BINARY_DIR}/man/attest.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${PROJECT_BINARY_DIR}/man/attn.3 DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
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
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
configure_package_config_file(cmake/attnConfig.cmake.in attnConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(attnConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
        DESTINATION ${package_dir})
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${package_dir})
