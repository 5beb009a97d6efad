# attn_embed_page(TARGET PAGE.html): gives TARGET a header PAGE_page.hpp with the page as pages::PAGE_page, a text that
# needs no other file: style sheets and scripts of <link> and <script src> lines are inserted in their place.
#
# Runs this file as a script when the build is configured, since Ninja might run a build step after compiling the files
# that include the header: `cmake -DPAGE=... -DHEADER=... -P cmake/embed_page.cmake`.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(attn_embed_page_script ${CMAKE_CURRENT_LIST_FILE})

  function(attn_embed_page target page)
    cmake_path(ABSOLUTE_PATH page NORMALIZE)
    cmake_path(GET page STEM name)
    cmake_path(GET page PARENT_PATH folder)
    set(header ${CMAKE_CURRENT_BINARY_DIR}/embedded/${name}_page.hpp)
    # A change of any file that a page may link to makes the header again.
    file(GLOB parts CONFIGURE_DEPENDS
      ${folder}/*.css ${folder}/*.js ${PROJECT_SOURCE_DIR}/examples/pages/*.css
      ${PROJECT_SOURCE_DIR}/examples/pages/*.js)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page} ${parts})
    execute_process(COMMAND ${CMAKE_COMMAND} -DPAGE=${page} -DHEADER=${header} -P ${attn_embed_page_script}
      COMMAND_ERROR_IS_FATAL ANY)
    target_sources(${target} PRIVATE ${header})
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/embedded)
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.24)
cmake_path(GET PAGE STEM name)
cmake_path(GET PAGE PARENT_PATH folder)
file(READ "${PAGE}" text)

# Replaces each `line` by the file that it names by the attribute before `path`, between two tags.
macro(inline_links pattern open close)
  while(text MATCHES "${pattern}")
    set(line "${CMAKE_MATCH_0}")
    file(READ "${folder}/${CMAKE_MATCH_1}" part)
    string(REPLACE "${line}" "${open}\n${part}${close}" text "${text}")
  endwhile()
endmacro()
inline_links("<link rel=\"stylesheet\" href=\"([^\"]*)\">" "<style>" "</style>")
inline_links("<script src=\"([^\"]*)\"></script>" "<script>" "</script>")

if(text MATCHES "\\)page\"")
  message(FATAL_ERROR "${PAGE}: contains the end of the C++ literal that it becomes")
endif()
set(header "// ${name}.html with all that it links to.
#pragma once

#include <string_view>

namespace pages {

inline constexpr std::string_view ${name}_page = R\"page(${text})page\";

}  // namespace pages
")
# Written only if it changes: otherwise each configuration would compile the program again.
set(old "")
if(EXISTS "${HEADER}")
  file(READ "${HEADER}" old)
endif()
if(NOT old STREQUAL header)
  file(WRITE "${HEADER}" "${header}")
endif()
