// As much of HTTP/1.1 as an etcd server needs: POST of JSON over a connection that is kept. No TLS.
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
std::string http_post(const std::string& host, const std::string& path, const std::string& body);

std::string to_base64(std::string_view bytes);
Outcome<std::string> from_base64(std::string_view text);

}  // namespace optimus
