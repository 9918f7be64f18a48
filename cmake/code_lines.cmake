# SPDX-License-Identifier: Apache-2.0
#
# attn_add_code_lines(into): adds the source that holds the table of tool/report/code_lines.h to the list.
# It is written anew when a file that it points into changes.

function(attn_add_code_lines into)
    set(definitions ${PROJECT_SOURCE_DIR}/tool/report/code_lines.def)
    set(script ${PROJECT_SOURCE_DIR}/cmake/code_lines.sh)
    set(output ${PROJECT_BINARY_DIR}/code_lines.c)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${definitions})
    set(files "")
    file(STRINGS ${definitions} entries REGEX "^CODE\\(")
    foreach(entry IN LISTS entries)
        string(REGEX REPLACE "^CODE\\([A-Z_]+, \"([^\"]+)\".*" "\\1" file "${entry}")
        list(APPEND files ${PROJECT_SOURCE_DIR}/${file})
    endforeach()
    list(REMOVE_DUPLICATES files)
    add_custom_command(
        OUTPUT ${output}
        COMMAND sh ${script} ${PROJECT_SOURCE_DIR} ${output}
        DEPENDS ${definitions} ${script} ${files}
        COMMENT "Finding the lines of tool/report/code_lines.def"
        VERBATIM)
    set_source_files_properties(${output} PROPERTIES
        INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/tool)
    set(${into} ${${into}} ${output} PARENT_SCOPE)
endfunction()
