# Fails if the compiled kernels move vectors of more than 16 bytes to or from the stack by aligned moves: Windows aligns
# the stack to 16 bytes.
cmake_minimum_required(VERSION 3.24)

execute_process(COMMAND "${OBJDUMP}" --disassemble --no-show-raw-insn "${LIBRARY}"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "vmov(u|dqu)[a-z0-9]* [^\n]*[yz]mm[^\n]*" unaligned "${text}")
list(LENGTH unaligned count)
if(count LESS 100)
  message(FATAL_ERROR "${LIBRARY}: only ${count} moves of wide vectors were found")
endif()
string(REGEX MATCH "vmov(a|dqa)[a-z0-9]* [^\n]*([yz]mm[^\n]*[(]%r[sb]p|[(]%r[sb]p[^\n]*[yz]mm)[^\n]*" aligned "${text}")
if(aligned)
  message(FATAL_ERROR "${LIBRARY}: an aligned move of a wide vector: ${aligned}")
endif()
message("${count} moves of wide vectors, none aligned on the stack")
