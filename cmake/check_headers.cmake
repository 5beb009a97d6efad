# Fails unless each header begins with a line that says what it contains and a line with its licence.
cmake_minimum_required(VERSION 3.24)

cmake_path(SET include_dir NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../include")
file(GLOB_RECURSE headers "${include_dir}/*.hpp" "${include_dir}/*.inc")
if(NOT headers)
  message(FATAL_ERROR "no header in ${include_dir}")
endif()

set(problems "")
foreach(header IN LISTS headers)
  file(READ "${header}" text LIMIT 400)
  if(NOT text MATCHES "^// [^\n]+\n// SPDX-License-Identifier: Apache-2\\.0\n")
    list(APPEND problems "${header}")
  endif()
endforeach()
if(problems)
  list(JOIN problems "\n  " text)
  message(FATAL_ERROR "each header needs a first line that says what it contains and a second line // SPDX-License-Identifier: Apache-2.0; missing in\n  "
    "${text}\nsed -i '1a // SPDX-License-Identifier: Apache-2.0' FILE adds the second.")
endif()
