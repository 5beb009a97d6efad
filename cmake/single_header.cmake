# The target single_header writes attn_single.hpp into the build folder. With ATTN_SINGLE_HEADER, tests that include
# attn's headers by name get that file.
set(attn_single_header ${PROJECT_BINARY_DIR}/attn_single.hpp)
set(attn_single_header_forwards ${PROJECT_BINARY_DIR}/single_header)
set(attn_single_header_command
  ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/cmake/single_header.py
    ${PROJECT_SOURCE_DIR}/include ${attn_single_header} ${PROJECT_VERSION} ${attn_single_header_forwards})
file(GLOB_RECURSE attn_single_header_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/attn/*)
add_custom_command(OUTPUT ${attn_single_header}
  COMMAND ${attn_single_header_command}
  DEPENDS ${attn_single_header_sources} cmake/single_header.py
  VERBATIM)
add_custom_target(single_header DEPENDS ${attn_single_header})

if(ATTN_SINGLE_HEADER)
  execute_process(COMMAND ${attn_single_header_command} COMMAND_ERROR_IS_FATAL ANY)
  target_include_directories(attn BEFORE INTERFACE
    $<BUILD_INTERFACE:${attn_single_header_forwards}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>)
  target_include_directories(attn_compiled BEFORE PRIVATE ${attn_single_header_forwards} ${PROJECT_BINARY_DIR})
endif()
