// Makes bytes from a stranger's file, or a path, fit for an error message: valid UTF-8 whatever
// came in, no control characters (they could rewrite a terminal), and no more than a line of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace specdec {

// Valid UTF-8 stays; control characters and other bytes become \xNN; cut after max_bytes with
// "...".
std::string printable(std::string_view bytes, std::size_t max_bytes = 4096);

// 'name', printable and at most a line long.
std::string quoted(std::string_view bytes, std::size_t max_bytes = 80);

}  // namespace specdec
