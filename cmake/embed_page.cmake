# attn_embed_page(TARGET PAGE.html): gives TARGET a header PAGE_page.hpp with the page as
# pages::PAGE_page, one text that needs no other file: the style sheets and scripts that it links to
# by <link> and <script src> lines stand in their place.
#
# The same file does the work, when the build is configured: as a step of the build Ninja would begin it last, and after it
# what includes the header. `cmake -DPAGE=... -DHEADER=... -P cmake/embed_page.cmake`.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(attn_embed_page_script ${CMAKE_CURRENT_LIST_FILE})

  function(attn_embed_page target page)
    cmake_path(ABSOLUTE_PATH page NORMALIZE)
    cmake_path(GET page STEM name)
    cmake_path(GET page PARENT_PATH folder)
    set(header ${CMAKE_CURRENT_BINARY_DIR}/embedded/${name}_page.hpp)
    # All that may be linked to: a change of any makes the header again.
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

# Puts the file that `line` names by the attribute before `path` in the line's place, between two tags.
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
# Written only if it changes, or each configuration would compile the program again.
set(old "")
if(EXISTS "${HEADER}")
  file(READ "${HEADER}" old)
endif()
if(NOT old STREQUAL header)
  file(WRITE "${HEADER}" "${header}")
endif()
