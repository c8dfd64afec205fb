# weir_floor(NAME LINK ...): the static library weir_NAME from src/NAME, and its tests.
# Every *.cpp in the folder belongs to it, but for *_test.cpp (one test program a floor) and
# main.cpp (the program itself).
function(weir_floor name)
  cmake_parse_arguments(FLOOR "" "" "LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")

  if(sources)
    add_library(weir_${name} STATIC ${sources})
    target_link_libraries(weir_${name} PUBLIC weir_options ${FLOOR_LINK})
  else()
    add_library(weir_${name} INTERFACE)
    target_link_libraries(weir_${name} INTERFACE weir_options ${FLOOR_LINK})
  endif()

  if(WEIR_TESTS AND tests)
    weir_test(${name}_test SOURCES ${tests} LINK weir_${name})
  endif()
endfunction()

# weir_test(NAME SOURCES ... LINK ... [TIMEOUT s]): a GoogleTest program, run as one test.
function(weir_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;LINK" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 900)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LINK} GTest::gtest_main GTest::gmock)
  target_compile_definitions(${name} PRIVATE WEIR_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    WEIR_LLAMA_SOURCE_DIR="${WEIR_LLAMA_SOURCE}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS weir)
endfunction()
