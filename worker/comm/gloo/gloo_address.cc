/* Turns addresses of Gloo's TCP pairs into text and back, and tries to reach them. */
#include "worker/comm/gloo/gloo_address.hh"

#include <cstring>

#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <gloo/common/error.h>

namespace mesh
{

using gloo::transport::Pair;

std::pair<std::string, std::string> numeric(const sockaddr_storage &ss)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    socklen_t len = ss.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    int rc = getnameinfo(reinterpret_cast<const sockaddr *>(&ss), len, host, sizeof host, port, sizeof port,
                         NI_NUMERICHOST | NI_NUMERICSERV);
    if (rc != 0)
        GLOO_THROW("an address of family ", ss.ss_family, " has no name: ", gai_strerror(rc));
    return {host, port};
}

static sockaddr_storage parse(const std::string &host, const std::string &port)
{
    addrinfo hints{}, *ai = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &ai);
    if (rc != 0)
        GLOO_THROW("'", host, "' port '", port, "' is not an address: ", gai_strerror(rc));
    sockaddr_storage ss{};
    memcpy(&ss, ai->ai_addr, ai->ai_addrlen);
    freeaddrinfo(ai);
    return ss;
}

sockaddr_storage address_of(Pair &pair)
{
    return gloo::transport::tcp::Address(pair.address().bytes()).getSockaddr();
}

std::string text(const sockaddr_storage &ss)
{
    auto n = numeric(ss);
    return n.first.substr(0, n.first.find('%')) + " " + n.second;
}

std::string place_of(Pair &pair)
{
    gloo::transport::tcp::Address a(pair.address().bytes());
    auto port = numeric(a.getSockaddr()).second;
    return a.getSeq() < 0 ? port : port + "/" + std::to_string(a.getSeq());
}

gloo::transport::tcp::Address parse_place(const std::string &host, const std::string &place)
{
    size_t slash = place.find('/');
    auto ss = parse(host, place.substr(0, slash));
    return gloo::transport::tcp::Address(ss, slash == std::string::npos ? -1 : atoll(place.c_str() + slash + 1));
}

std::string try_to_reach(const sockaddr_storage &ss)
{
    constexpr int WAIT_MS = 1000;
    int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), code = 0;
    socklen_t len = sizeof code;
    if (fd < 0)
        return strerror(errno);
    if (::connect(fd, reinterpret_cast<const sockaddr *>(&ss),
                  ss.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) != 0)
        code = errno;
    pollfd p{fd, POLLOUT, 0};
    if (code == EINPROGRESS && (poll(&p, 1, WAIT_MS) <= 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &len) != 0))
        code = ETIMEDOUT;
    close(fd);
    return code ? strerror(code) : "closed by the peer";
}

std::pair<std::string, std::string> ends(int fd)
{
    sockaddr_storage own{}, peer{};
    socklen_t a = sizeof own, b = sizeof peer;
    if (getsockname(fd, reinterpret_cast<sockaddr *>(&own), &a) != 0 ||
        getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &b) != 0 ||
        (own.ss_family != AF_INET && own.ss_family != AF_INET6))
        return {};
    return {text(own), text(peer)};
}

} // namespace mesh
