# weir_embed_json(TARGET NAME FILE...): makes the JSON files, as one array, part of TARGET. The header
# NAME.h declares `weir::kName` (NAME in camel case) as a std::string_view.
set(WEIR_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/EmbedJson.cmake)
function(weir_embed_json target name)
  set(out ${CMAKE_BINARY_DIR}/generated/${name})
  add_custom_command(
    OUTPUT ${out}.cpp ${out}.h
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} "-DINPUTS=${ARGN}" -DOUTPUT=${out} -P ${WEIR_EMBED_SCRIPT}
    DEPENDS ${ARGN} ${WEIR_EMBED_SCRIPT}
    VERBATIM)
  target_sources(${target} PRIVATE ${out}.cpp ${out}.h)
endfunction()
