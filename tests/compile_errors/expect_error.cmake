# Compiles PROGRAM, which must fail in few lines with the error in its first line.
cmake_minimum_required(VERSION 3.25)

# A template error names the calls that led to it, each with its source line. Lines that list includes do not count.
set(most_lines 45)

file(STRINGS ${PROGRAM} head LIMIT_COUNT 2)
list(GET head 0 expected)
string(REGEX REPLACE "^// error: " "" expected "${expected}")
set(standard 20)
if(head MATCHES "// standard: ([0-9]+)")
  set(standard ${CMAKE_MATCH_1})
endif()
set(flags "")
if(head MATCHES "// flags: ([^;]+)")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_1}")
endif()

# A precompiled header serves programs of the same standard and flags that include it first.
set(precompiled "")
if(standard EQUAL 20 AND NOT flags)
  file(STRINGS ${PROGRAM} includes REGEX "^#include <attn/" LIMIT_COUNT 1)
  string(REGEX REPLACE "^#include <(.*)>.*" "${PRECOMPILED}/\\1.gch" header "${includes}")
  if(NOT EXISTS "${header}")
    set(precompiled "")
  elseif(COMPILER_ID STREQUAL "Clang")
    set(precompiled -include-pch "${header}")
  else()
    set(precompiled "-I${PRECOMPILED}")
  endif()
endif()
execute_process(
  COMMAND ${COMPILER} -std=c++${standard} -fsyntax-only ${flags} ${precompiled} "-I${INCLUDE}" -isystem "${EIGEN}" ${PROGRAM}
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} compiles")
endif()
string(REGEX MATCH "error: [^\n]*" first "${output}")
string(FIND "${first}" "${expected}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the first error is\n${first}\ninstead of\n${expected}\nin\n${output}")
endif()
string(REGEX REPLACE "(In file included |                 )from [^\n]*\n" "" output "${output}")
string(REGEX MATCHALL "\n" lines "${output}")
list(LENGTH lines lines)
if(lines GREATER most_lines)
  message(FATAL_ERROR "${lines} lines, more than ${most_lines}:\n${output}")
endif()
