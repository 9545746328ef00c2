/* Addresses of pairs and sockets as text. Throw gloo::Exception. */
#ifndef CRUN_WORKER_COMM_GLOO_ADDRESS_HH
#define CRUN_WORKER_COMM_GLOO_ADDRESS_HH

#include <string>
#include <utility>

#include <sys/socket.h>

#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>

namespace mesh
{

std::pair<std::string, std::string> numeric(const sockaddr_storage &ss); /* host, port */
sockaddr_storage address_of(gloo::transport::Pair &pair);

/* The same on both ends of a connection: no name of an interface of this host. */
std::string text(const sockaddr_storage &ss);

/* Where a pair listens, in a record: "port", or "port/number" where a device has one listener and numbers its pairs. */
std::string place_of(gloo::transport::Pair &pair);
gloo::transport::tcp::Address parse_place(const std::string &host, const std::string &place);

/* Ask the kernel: what does connecting say now? */
std::string try_to_reach(const sockaddr_storage &ss);

/* Both ends of a socket as text; empty if it is not a connected one. */
std::pair<std::string, std::string> ends(int fd);

} // namespace mesh

#endif
