if(PARAMSHARD_TESTS)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

# The default build leaves out benchmarks, campaigns and programs of libFuzzer. `bundled`: see BUNDLED.
add_custom_target(benchmarks)
add_custom_target(lab DEPENDS benchmarks)
add_custom_target(bundled DEPENDS benchmarks)

# paramshard_target(<name> LIBRARY|BINARY|TEST|CAMPAIGN|BENCHMARK <sources>... [DEPS <targets>...] [LABELS <labels>...]
#                   [TIMEOUT <seconds>] [SHARDS <n>] [ALONE <patterns>...] [BUNDLED] [ONE_THREAD] [APART])
#
#   LIBRARY    static, or of headers alone when it has no sources. paramshard_model is also paramshard::model. Its
#              DEPS are its users' too.
#   BINARY     a program in bin/, installed.
#   TEST       a GoogleTest program with main() from gmock_main; one test of ctest, or SHARDS of them, which run beside
#              each other. Cases share a process; those that match ALONE (globs for <suite>.<case>), because they change
#              the process, have one of their own. LABELS gpu, multi_gpu, slow. TIMEOUT is per case: 60 seconds, 300
#              with the label slow; four times that with sanitizers.
#              BUNDLED: it also runs on GPUs; it is in bin/test/, and ./dev bundle takes it along. The target `bundled`
#              builds these, and all binaries, benchmarks and campaigns.
#              ONE_THREAD: what it calls starts no other one, and ThreadSanitizer has nothing to look at: left out
#              there.
#   APART: its sources use one name for different things, each in its own namespace without a name; with
#   PARAMSHARD_UNITY they are compiled one by one all the same.
#   CAMPAIGN   a program in bin/ that the target `lab` builds.
#   BENCHMARK  a google-benchmark program in bin/bench/ that the targets `benchmarks` and `lab` build.
#
# All include from the root of the repository, and are compiled with paramshard_flags.
function(paramshard_target name kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "APART;BUNDLED;ONE_THREAD" "SHARDS;TIMEOUT"
    "ALONE;DEPS;LABELS")
  set(sources ${arg_UNPARSED_ARGUMENTS})

  if(kind STREQUAL "LIBRARY")
    if(NOT sources)
      add_library(${name} INTERFACE)
      _paramshard_name_library(${name})
      _paramshard_include_from_root(${name} INTERFACE)
      target_link_libraries(${name} INTERFACE ${arg_DEPS})
      return()
    endif()
    add_library(${name} STATIC ${sources})
    _paramshard_name_library(${name})
    if(PARAMSHARD_PRECOMPILE)
      target_precompile_headers(${name} REUSE_FROM paramshard_precompiled_library)
    endif()
  elseif(kind MATCHES "^(BINARY|TEST|CAMPAIGN|BENCHMARK)$")
    add_executable(${name} ${sources})
    if(TARGET paramshard_tsan)
      target_link_libraries(${name} PRIVATE paramshard_tsan)
    endif()
  else()
    message(FATAL_ERROR "paramshard_target(${name}): want LIBRARY, BINARY, TEST, CAMPAIGN or BENCHMARK, got ${kind}")
  endif()

  if(PARAMSHARD_UNITY AND NOT arg_APART)
    # More at once would save little: headers are a small part of it by then, and two compilers share the machine.
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
  _paramshard_include_from_root(${name} PUBLIC)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:paramshard_flags> PUBLIC ${arg_DEPS})

  if(kind MATCHES "^(BINARY|CAMPAIGN)$" OR arg_BUNDLED)
    add_dependencies(bundled ${name})
  endif()
  if(kind STREQUAL "BINARY")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  elseif(kind STREQUAL "CAMPAIGN")
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    add_dependencies(lab ${name})
  elseif(kind STREQUAL "TEST")
    target_link_libraries(${name} PRIVATE paramshard_test_flags GTest::gmock_main)
    if(arg_BUNDLED)
      set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/test)
    endif()
    if(PARAMSHARD_PRECOMPILE)
      target_precompile_headers(${name} REUSE_FROM paramshard_precompiled_test)
    endif()
    if(arg_ONE_THREAD AND PARAMSHARD_SANITIZE STREQUAL "thread")
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    else()
      if(NOT arg_SHARDS)
        set(arg_SHARDS 1)
      endif()
      cmake_language(EVAL CODE
        "cmake_language(DEFER DIRECTORY [[${PROJECT_SOURCE_DIR}]] CALL _paramshard_add_cases [[${name}]] [[${arg_LABELS}]] [[${arg_TIMEOUT}]] ${arg_SHARDS} [[${arg_ALONE}]])")
    endif()
  elseif(kind STREQUAL "BENCHMARK")
    set_target_properties(${name} PROPERTIES
      EXCLUDE_FROM_ALL TRUE RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/bench)
    add_dependencies(benchmarks ${name})
    target_link_libraries(${name} PRIVATE benchmark::benchmark_main)
  endif()
endfunction()

# Gives a library its public name, in this build and for those who find the installed package.
function(_paramshard_name_library name)
  string(REGEX REPLACE "^paramshard_" "" short_name ${name})
  add_library(paramshard::${short_name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short_name})
endfunction()

function(_paramshard_include_from_root name scope)
  target_include_directories(${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/paramshard>)
endfunction()

# A program is one test of ctest, or SHARDS of them, <name>.1 and so on: tests/support/run_cases.py runs its cases. Called
# at the end of the tree, when it is known what programs the test depends on.
function(_paramshard_add_cases name labels timeout shards alone)
  if(NOT timeout)
    set(timeout 60)
    if("slow" IN_LIST labels)
      set(timeout 300)
    endif()
  endif()
  if(PARAMSHARD_SANITIZE)
    math(EXPR timeout "4 * ${timeout}")  # ThreadSanitizer looks at every byte that memcpy moves
  endif()
  set(used)
  get_target_property(dependencies ${name} MANUALLY_ADDED_DEPENDENCIES)
  if(NOT dependencies)
    set(dependencies)
  endif()
  foreach(dependency IN LISTS dependencies)
    get_target_property(type ${dependency} TYPE)
    if(type MATCHES "^(EXECUTABLE|MODULE_LIBRARY|SHARED_LIBRARY)$")
      list(APPEND used $<TARGET_FILE:${dependency}>)
    endif()
  endforeach()
  list(TRANSFORM alone PREPEND --alone=)
  foreach(shard RANGE 1 ${shards})
    set(test ${name})
    if(shards GREATER 1)
      set(test ${name}.${shard})
    endif()
    add_test(NAME ${test} COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/support/run_cases.py
      --shard=${shard}/${shards} --timeout=${timeout} ${alone} --report=${PROJECT_BINARY_DIR}/reports/${test}.xml
      --passed=${PROJECT_BINARY_DIR}/passed/${test} $<TARGET_FILE:${name}> ${used})
    # For a program that is killed again and again.
    math(EXPR limit "10 * ${timeout} + 1800")
    set_tests_properties(${test} PROPERTIES TIMEOUT ${limit} LABELS "${labels}")
  endforeach()
endfunction()
