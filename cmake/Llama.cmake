# ggml, libllama and llama-common as the target weir::llama, from
#   -DWEIR_LLAMA_SOURCE=dir -DWEIR_LLAMA_BUILD=dir   a checkout and its static Release build
#   -DWEIR_LLAMA_SOURCE=dir                          a checkout, built here as a subproject
set(WEIR_LLAMA_SOURCE "" CACHE PATH "llama.cpp checkout")
set(WEIR_LLAMA_BUILD "" CACHE PATH "static Release build of that checkout")

add_library(weir_llama INTERFACE)
add_library(weir::llama ALIAS weir_llama)

if(WEIR_LLAMA_SOURCE AND WEIR_LLAMA_BUILD)
  target_include_directories(weir_llama SYSTEM INTERFACE
    ${WEIR_LLAMA_SOURCE}/include ${WEIR_LLAMA_SOURCE}/ggml/include ${WEIR_LLAMA_SOURCE}/common)
  set(libraries "")
  foreach(library
      common/libllama-common.a common/libllama-common-base.a vendor/cpp-httplib/libcpp-httplib.a
      src/libllama.a ggml/src/libggml.a ggml/src/libggml-cpu.a ggml/src/libggml-base.a)
    if(NOT EXISTS ${WEIR_LLAMA_BUILD}/${library})
      message(FATAL_ERROR "${WEIR_LLAMA_BUILD}/${library} is missing: run 'make build', which builds it")
    endif()
    list(APPEND libraries ${WEIR_LLAMA_BUILD}/${library})
  endforeach()
  find_package(Threads REQUIRED)
  target_link_libraries(weir_llama INTERFACE ${libraries} Threads::Threads ${CMAKE_DL_LIBS} m)
elseif(WEIR_LLAMA_SOURCE)
  set(BUILD_SHARED_LIBS OFF)
  set(LLAMA_BUILD_COMMON ON)
  set(LLAMA_OPENSSL OFF)
  set(GGML_OPENMP OFF)
  add_subdirectory(${WEIR_LLAMA_SOURCE} ${CMAKE_BINARY_DIR}/llama EXCLUDE_FROM_ALL)
  target_link_libraries(weir_llama INTERFACE llama-common llama ggml)
else()
  # A system install will not do: the oracle reads src/llama-ext.h.
  message(FATAL_ERROR "set WEIR_LLAMA_SOURCE to a llama.cpp checkout, or run 'make build', which fetches it")
endif()
