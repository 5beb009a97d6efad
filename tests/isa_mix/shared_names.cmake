# Fails if the objects FIRST and SECOND, compiled with different -m flags, both emit a function of attn's, of which the
# linker would keep one copy. Exceptions are outside of the inline namespace and excluded: they contain no arithmetic.
cmake_minimum_required(VERSION 3.24)

foreach(object FIRST SECOND)
  execute_process(COMMAND ${NM} -C --defined-only ${${object}}
    OUTPUT_VARIABLE ${object}_names COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "," ${object}_names "${${object}_names}")
  string(REGEX MATCHALL "[0-9a-f]+ [VWu] [^\n]*attn::[^\n]*" ${object}_names "${${object}_names}")
  list(TRANSFORM ${object}_names REPLACE "^[0-9a-f]+ [VWu] " "")
  list(LENGTH ${object}_names count)
  if(count LESS 10)
    message(FATAL_ERROR "${${object}}: only ${count} functions of attn to compare")
  endif()
endforeach()

set(shared "")
foreach(name IN LISTS FIRST_names)
  if(name IN_LIST SECOND_names AND NOT name MATCHES "attn::(Shape|DType|Value|Io)Error")
    list(APPEND shared "${name}")
  endif()
endforeach()
if(shared)
  list(JOIN shared "\n  " text)
  message(FATAL_ERROR "functions with the same name in both objects:\n  ${text}")
endif()
