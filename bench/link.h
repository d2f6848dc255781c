/* client.c's connection: a unix socket, or a WebSocket whose message boundaries mean nothing.
 *
 * Never blocks in a write: what does not fit waits in `waiting`, so that client and server cannot wait for each other.
 */
#ifndef BENCH_LINK_H
#define BENCH_LINK_H

#include "wire.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define READ_SIZE (256u << 10) /* the agent's batch; larger reads only leave the cache */

struct link {
    int fd, websocket, closed;
    struct out waiting;
    void (*deliver)(const unsigned char *p, size_t size);
    /* incoming WebSocket frame */
    unsigned char head[14];
    unsigned head_has;
    uint64_t body_left;
    unsigned char control[125];
    unsigned control_has;
};

static inline void link_write(struct link *l, const void *data, size_t size)
{
    const unsigned char *p = data;
    while (size && !l->waiting.size) {
        ssize_t sent = write(l->fd, p, size);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0)
            die("cannot send: %s", strerror(errno));
        p += sent;
        size -= (size_t)sent;
    }
    out_bytes(&l->waiting, p, size);
}

static inline void link_flush(struct link *l)
{
    struct out before = l->waiting;
    if (!before.size)
        return;
    l->waiting = (struct out){0};
    link_write(l, before.data, before.size);
    free(before.data);
}

/* Sends `o` and empties it: as it is, or as one masked WebSocket frame. */
static inline void link_send_as(struct link *l, struct out *o, unsigned opcode)
{
    if (!l->websocket) {
        link_write(l, o->data, o->size);
        o->size = 0;
        return;
    }
    /* The mask protects proxies from scripts, which a bench has neither of: one constant key does. */
    static const unsigned char key[4] = {0x5A, 0xC3, 0x17, 0x88};
    unsigned char head[14] = {0x80 | (unsigned char)opcode};
    size_t used = 2;
    if (o->size < 126) {
        head[1] = (unsigned char)o->size;
    } else if (o->size < 65536) {
        head[1] = 126;
        put_be(head + 2, o->size, 2);
        used = 4;
    } else {
        head[1] = 127;
        put_be(head + 2, o->size, 8);
        used = 10;
    }
    head[1] |= 0x80;
    memcpy(head + used, key, 4);
    for (size_t i = 0; i < o->size; i++)
        o->data[i] ^= key[i & 3];
    link_write(l, head, used + 4);
    link_write(l, o->data, o->size);
    o->size = 0;
}

static inline void link_send(struct link *l, struct out *o)
{
    if (o->size)
        link_send_as(l, o, 2);
}

static inline void websocket_control(struct link *l)
{
    unsigned opcode = l->head[0] & 15;
    if (opcode == 8)
        l->closed = 1;
    if (opcode == 9) {
        struct out pong = {0};
        out_bytes(&pong, l->control, l->control_has);
        link_send_as(l, &pong, 10);
        free(pong.data);
    }
    l->control_has = 0;
}

static inline void websocket_feed(struct link *l, const unsigned char *p, size_t size)
{
    while (size && !l->closed) {
        int control = l->head[0] & 8;
        if (l->body_left) {
            size_t take = l->body_left < size ? (size_t)l->body_left : size;
            if (control) {
                memcpy(l->control + l->control_has, p, take);
                l->control_has += (unsigned)take;
            } else {
                l->deliver(p, take);
            }
            p += take;
            size -= take;
            l->body_left -= take;
            if (control && !l->body_left)
                websocket_control(l);
            continue;
        }
        l->head[l->head_has++] = *p++;
        size--;
        unsigned code = l->head_has > 1 ? l->head[1] : 0;
        unsigned needed = code == 126 ? 4 : code == 127 ? 10 : 2;
        if (l->head_has < needed)
            continue;
        if (code & 0x80 || (l->head[0] & 0x70))
            die("malformed WebSocket frame: masked or with extension bits");
        l->body_left = code < 126 ? code : get_be(l->head + 2, (int)needed - 2);
        l->head_has = 0;
        if (l->head[0] & 8) {
            if (l->body_left > sizeof l->control)
                die("malformed WebSocket frame: long control frame");
            if (!l->body_left)
                websocket_control(l);
        }
    }
}

static inline void connect_unix(struct link *l, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("cannot connect: path too long");
    strcpy(address.sun_path, path);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(l->fd, (struct sockaddr *)&address, sizeof address))
        die("cannot connect to %s: %s", path, strerror(errno));
}

static inline void connect_websocket(struct link *l, const char *where)
{
    char host[256], request[1024], answer[4097];
    const char *colon = strrchr(where, ':');
    if (!colon || (size_t)(colon - where) >= sizeof host)
        die("cannot connect: HOST:PORT is needed");
    snprintf(host, sizeof host, "%.*s", (int)(colon - where), where);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
    if (getaddrinfo(host, colon + 1, &hints, &found))
        die("cannot connect: %s is no numeric HOST:PORT", where);
    l->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(l->fd, found->ai_addr, found->ai_addrlen))
        die("cannot connect to %s: %s", where, strerror(errno));
    freeaddrinfo(found);
    int on = 1;
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int size = snprintf(request, sizeof request,
                        "GET / HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Key: YmVuY2ggYmVuY2ggYmVuYw==\r\nSec-WebSocket-Version: 13\r\n\r\n",
                        where);
    if (write(l->fd, request, (size_t)size) != size)
        die("cannot send the upgrade");
    /* Byte by byte: what follows the blank line is already WebSocket.  Sec-WebSocket-Accept is not looked at: a server
     * that answers 101 and then speaks frames is what the bench is about. */
    int has = 0;
    while (has < 4 || memcmp(answer + has - 4, "\r\n\r\n", 4)) {
        if (has == 4096 || read(l->fd, answer + has, 1) != 1)
            die("cannot upgrade to WebSocket: %.*s", has, answer);
        has++;
    }
    if (has < 12 || memcmp(answer + 8, " 101", 4))
        die("cannot upgrade to WebSocket: %.*s", has, answer);
    l->websocket = 1;
}

/* Waits at most `seconds` for something, takes what is there and delivers it.  Returns the bytes received. */
static inline size_t link_pump(struct link *l, double seconds)
{
    static unsigned char buffer[READ_SIZE];
    struct pollfd wait = {l->fd, (short)(POLLIN | (l->waiting.size ? POLLOUT : 0)), 0};
    struct timespec limit = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (ppoll(&wait, 1, &limit, NULL) <= 0)
        return 0;
    if (wait.revents & POLLOUT)
        link_flush(l);
    if (!(wait.revents & ~POLLOUT))
        return 0;
    ssize_t got = read(l->fd, buffer, sizeof buffer);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0) {
        l->closed = 1;
        return 0;
    }
    if (l->websocket)
        websocket_feed(l, buffer, (size_t)got);
    else
        l->deliver(buffer, (size_t)got);
    return (size_t)got;
}

#endif
