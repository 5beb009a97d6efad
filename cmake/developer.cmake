# What holds for attn's own files and not for its users': build type, warnings, sanitizers.
#
# Included after the dependencies: a fetched one is compiled with its own flags.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow)
if(ATTN_WERROR)
  add_compile_options(-Werror)
endif()

if(ATTN_SANITIZE)
  add_compile_options(-fsanitize=${ATTN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ATTN_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With sanitizers g++ warns of it where nothing is wrong, in the standard library's own headers too.
    add_compile_options(-Wno-maybe-uninitialized)
  else()
    # Programs and attn::compiled hand each other functions of structs of one layout, each in a namespace of its own.
    add_compile_options(-fno-sanitize=function)
  endif()
endif()
