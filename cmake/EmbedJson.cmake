# Writes OUTPUT.h and OUTPUT.cpp with the bytes of "[", the INPUTS with "," between them, and "]". See
# Embed.cmake.
set(hex "")
foreach(input ${INPUTS})
  file(READ ${input} one HEX)
  string(APPEND hex "2c${one}")
endforeach()
string(REGEX REPLACE "^2c" "" hex "${hex}")
set(hex "5b${hex}5d")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)"
       "\\1\n" bytes "${bytes}")
string(REPLACE "_" ";" words "${NAME}")
set(symbol k)
foreach(word ${words})
  string(SUBSTRING ${word} 0 1 first)
  string(SUBSTRING ${word} 1 -1 rest)
  string(TOUPPER ${first} first)
  string(APPEND symbol ${first}${rest})
endforeach()
file(WRITE ${OUTPUT}.h "#pragma once

#include <string_view>

namespace weir {
extern const std::string_view ${symbol};
}
")
file(WRITE ${OUTPUT}.cpp "#include \"${NAME}.h\"

namespace weir {
namespace {
constexpr unsigned char kBytes[] = {
${bytes}
};
}
const std::string_view ${symbol}{reinterpret_cast<const char*>(kBytes), sizeof kBytes};
}
")
