// As much of HTTP/1.1 as an etcd server needs, POST of JSON over a connection that is kept, and GET for a machine's notice. No TLS.
#pragma once

#include <string>

#include "store/socket.h"

namespace optimus {

struct HttpAnswer {
  int status = 0;
  std::string body;
};

// Reads one answer. Its size is limited; whatever comes that is no HTTP is a failure.
Outcome<HttpAnswer> read_http_answer(Socket& socket, const Deadline& deadline);

// The request's bytes.
// With the words that machines' own services want to hear.
std::string http_get(const std::string& host, const std::string& path);
std::string http_post(const std::string& host, const std::string& path, const std::string& body);

std::string to_base64(std::string_view bytes);
Outcome<std::string> from_base64(std::string_view text);

}  // namespace optimus
