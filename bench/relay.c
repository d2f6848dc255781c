/* relay SOCKET: the ceiling that the agent is measured against.
 *
 * The least that can stand between PTYs and one client with the agent's framing: epoll, up to 64 KiB drained from a PTY,
 * one OUTPUT frame with its real header, one blocking write.  No history, no credit (Credit frames are read and ignored),
 * no reconnect, one client.  It answers hello, `create` and `attach` as far as client.c needs, so that the client runs the
 * same code against both contestants.  A session is not read before it is attached: nothing is lost for want of a history.
 *
 * Ends when its client leaves, and takes its sessions along.
 */
#define _GNU_SOURCE
#include "wire.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_SESSIONS 1024
#define CLIENT UINT32_MAX

struct session {
    pid_t pid;
    int master;
    uint32_t channel;
    uint64_t offset;
};

static struct session sessions[MAX_SESSIONS];
static unsigned session_count;
static int client_fd, epoll_fd;
static struct out answer;

static void send_all(const unsigned char *p, size_t size)
{
    while (size) {
        ssize_t sent = write(client_fd, p, size);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            exit(0); /* the client left; atexit ends the sessions */
        }
        p += sent;
        size -= (size_t)sent;
    }
}

static void send_answer(void)
{
    frame_end(&answer);
    send_all(answer.data, answer.size);
    answer.size = 0;
}

static void end_sessions(void)
{
    for (unsigned i = 0; i < session_count; i++)
        if (sessions[i].pid > 0)
            kill(-sessions[i].pid, SIGKILL);
}

static void watch(int fd, uint32_t tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = tag};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event))
        die("cannot watch a file descriptor: %s", strerror(errno));
}

static void spawn(struct session *s, char **argv)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    s->pid = forkpty(&s->master, NULL, NULL, &size);
    if (s->pid < 0)
        die("cannot spawn: %s", strerror(errno));
    if (s->pid == 0) {
        signal(SIGPIPE, SIG_DFL);
        execvp(argv[0], argv);
        _exit(127);
    }
    fcntl(s->master, F_SETFL, O_NONBLOCK);
    fcntl(s->master, F_SETFD, FD_CLOEXEC); /* or later sessions would keep earlier ones from hanging up */
}

static void drain(struct session *s)
{
    static unsigned char buffer[OUTPUT_HEADER + MAX_OUTPUT_DATA];
    uint32_t size = 0;
    int ends = 0;
    while (size < MAX_OUTPUT_DATA && ends < 2) {
        ssize_t got = read(s->master, buffer + OUTPUT_HEADER + size, MAX_OUTPUT_DATA - size);
        if (got > 0)
            size += (uint32_t)got;
        else if (got < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        else
            /* One EIO is no proof: n_tty_read() finds its buffer empty, the program writes, closes and exits, and only
             * then does it look whether the other side is closed.  Seen once in 10,000 exits; a second read tells. */
            ends++;
    }
    if (size) {
        put_output_header(buffer, s->channel, s->offset, size);
        send_all(buffer, OUTPUT_HEADER + size);
        s->offset += size;
    }
    if (ends < 2)
        return;
    int status = 0;
    if (waitpid(s->pid, &status, 0) == s->pid) /* before the close, whose SIGHUP could still meet a program that exits */
        s->pid = 0;
    close(s->master);
    frame_begin(&answer, T_MARK, 5);
    out_uint(&answer, s->channel);
    out_uint(&answer, s->offset);
    out_uint(&answer, 0);
    out_text(&answer, "exit");
    out_map(&answer, 1);
    out_text(&answer, "code");
    out_uint(&answer, WIFEXITED(status) ? (unsigned)WEXITSTATUS(status) : 255);
    send_answer();
}

/* The session whose id ("s" + index) `item` is. */
static struct session *session_of(struct item item)
{
    char *id = text_of(item);
    unsigned long index = item.kind == TEXT && id[0] == 's' ? strtoul(id + 1, NULL, 10) : MAX_SESSIONS;
    free(id);
    if (index >= session_count)
        die("cannot find the session");
    return &sessions[index];
}

static void on_create(uint64_t id, struct in *params)
{
    char *argv[32] = {0}, name[16];
    for (uint64_t pairs = in_want(params, MAP, "params").value; pairs--;) {
        struct item key = in_next(params);
        if (!is_text(key, "argv")) {
            in_skip(params);
            continue;
        }
        uint64_t words = in_want(params, ARRAY, "argv").value;
        for (uint64_t i = 0; i < words && i < 31; i++)
            argv[i] = text_of(in_want(params, TEXT, "argv"));
    }
    if (!argv[0] || session_count == MAX_SESSIONS)
        die("cannot create: no argv, or too many sessions");
    snprintf(name, sizeof name, "s%u", session_count);
    spawn(&sessions[session_count++], argv);
    for (int i = 0; argv[i]; i++)
        free(argv[i]);
    frame_begin(&answer, T_RESPONSE, 2);
    out_uint(&answer, id);
    out_map(&answer, 1);
    out_text(&answer, "id");
    out_text(&answer, name);
    send_answer();
}

static void on_attach(uint64_t id, struct in *params)
{
    struct session *s = NULL;
    uint32_t channel = 0;
    for (uint64_t pairs = in_want(params, MAP, "params").value; pairs--;) {
        struct item key = in_next(params);
        if (is_text(key, "session"))
            s = session_of(in_next(params));
        else if (is_text(key, "channel"))
            channel = (uint32_t)in_uint(params, "channel");
        else
            in_skip(params);
    }
    if (!s)
        die("cannot attach: no session");
    frame_begin(&answer, T_RESPONSE, 2);
    out_uint(&answer, id);
    out_map(&answer, 0);
    send_answer();
    s->channel = channel;
    watch(s->master, (uint32_t)(s - sessions));
}

static void on_hello(struct in *in)
{
    static const unsigned char identity[16] = "relay";
    for (int i = 0; i < 4; i++) /* magic, versions, client, token */
        in_skip(in);
    struct item nonce = in_want(in, BIN, "nonce");
    frame_begin(&answer, T_WELCOME, 8);
    out_uint(&answer, 1);
    out_bin(&answer, identity, 16);
    out_bin(&answer, identity, 16);
    out_array(&answer, 0);
    out_bin(&answer, nonce.data, nonce.value);
    out_text(&answer, "admin");
    out_map(&answer, 0);
    out_map(&answer, 0);
    send_answer();
}

static void on_frame(struct in in)
{
    in_want(&in, ARRAY, "frame");
    uint64_t type = in_uint(&in, "type");
    if (type == T_INPUT) {
        struct session *s = session_of(in_next(&in));
        in_skip(&in);
        struct item data = in_want(&in, BIN, "data");
        if (write(s->master, data.data, data.value) != (ssize_t)data.value)
            die("cannot write input: %s", strerror(errno));
    } else if (type == T_HELLO) {
        on_hello(&in);
    } else if (type == T_REQUEST) {
        uint64_t id = in_uint(&in, "request id");
        struct item method = in_next(&in);
        if (is_text(method, "create"))
            on_create(id, &in);
        else if (is_text(method, "attach"))
            on_attach(id, &in);
        else
            die("cannot do that: the relay knows create and attach only");
    }
}

static void receive(void)
{
    static unsigned char held[2 * MAX_FRAME];
    static size_t size;
    ssize_t got = read(client_fd, held + size, 64 << 10);
    if (got <= 0)
        exit(0);
    size += (size_t)got;
    size_t at = 0;
    while (size - at >= 4) {
        size_t length = get_be(held + at, 4);
        if (length > MAX_FRAME - (64 << 10))
            die("malformed frame: too long");
        if (size - at < 4 + length)
            break;
        on_frame((struct in){held + at + 4, held + at + 4 + length});
        at += 4 + length;
    }
    size -= at;
    memmove(held, held + at, size);
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path)
        die("usage: relay SOCKET");
    strcpy(address.sun_path, argv[1]);
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
        die("cannot listen on %s: %s", argv[1], strerror(errno));
    puts("ready");
    fflush(stdout);
    client_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (client_fd < 0)
        die("cannot accept: %s", strerror(errno));
    /* As much as the kernel gives: the ceiling must not wait for its client. */
    int room = 1 << 20;
    setsockopt(client_fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    watch(client_fd, CLIENT);
    atexit(end_sessions);
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(epoll_fd, events, 64, -1);
        if (ready < 0 && errno != EINTR)
            die("cannot wait: %s", strerror(errno));
        for (int i = 0; i < ready; i++) {
            if (events[i].data.u32 == CLIENT)
                receive();
            else
                drain(&sessions[events[i].data.u32]);
        }
    }
}
