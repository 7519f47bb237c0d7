// The subset of HTTP/1.1 that the project needs: POST of JSON over a persistent connection for etcd, and GET
// to poll for preemption notices on cloud machines. TLS is not supported.
#pragma once

#include <string>

#include "store/socket.h"

namespace optimus {

struct HttpResponse {
  int status = 0;
  std::string body;
};

// Reads one response. Fails if the response is too large or is not valid HTTP.
Outcome<HttpResponse> read_http_response(Socket& socket, const Deadline& deadline);

// These functions return the bytes of a request. A GET includes the headers that the metadata services of
// cloud machines require.
std::string http_get(const std::string& host, const std::string& path);
std::string http_post(const std::string& host, const std::string& path, const std::string& body);

std::string to_base64(std::string_view bytes);
Outcome<std::string> from_base64(std::string_view text);

}  // namespace optimus
