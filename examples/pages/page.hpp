// A page of a program: an HTML template, embedded by CMake, and the data that it draws.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace pages {

// The template with `data` in its element <script id="data">.
inline std::string with_data(std::string_view page, const nlohmann::ordered_json& data) {
  static constexpr std::string_view kPlace = R"(id="data">)";
  const std::size_t place = page.find(kPlace);
  if (place == page.npos) throw std::logic_error("the page has no place for its data");
  std::string result(page.substr(0, place + kPlace.size()));
  // `replace`, because JSON cannot hold bytes that are not UTF-8. '<' is escaped, so that no text
  // can end the element.
  for (const char c : data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    if (c == '<') {
      result += "\\u003c";
    } else {
      result += c;
    }
  }
  result += page.substr(place + kPlace.size());
  return result;
}

}  // namespace pages
