/* client (--unix PATH | --websocket HOST:PORT) [options] [-- COMMAND ...]: the bench's client, in C so that it is never
 * what is measured.  The same code talks to the agent and to relay.c.
 *
 *   --create N         create N sessions: COMMAND with the session's index as last word
 *   --session ID       attach to this one instead (repeatable)
 *   --policy TEXT      of created sessions: hold (default), block or overwrite
 *   --history BYTES    of created sessions
 *   --window BYTES     credit beyond what was consumed
 *   --credit BYTES     how much must have been consumed before it is renewed; a quarter of the window if not given
 *   --view             attach as one who only looks
 *   --token-file FILE  what the hello shows
 *   --gate FIFO        every session writes one byte and then opens this for reading: opened here, and the clock
 *                      started, once all have.  Spawning is not what is measured.
 *   --echo SECONDS     session 0 echoes, the others flood: time single keystrokes instead of waiting for exits
 *   --gap MS           mean pause between an echo and the next keystroke; 0: type nothing, only count the flood
 *   --hash             hash standard input like a session's output, and nothing else
 *
 * Checks that offsets and mark numbers are contiguous, that nothing exceeds the credit, and prints one line of JSON.
 */
#define _GNU_SOURCE
#include "link.h"

#include <getopt.h>
#include <sys/resource.h>

#define MAX_SESSIONS 1024
#define PATIENCE 60.0 /* seconds without a byte after which the run is given up */

struct stream {
    char *id;
    uint64_t offset, granted, mark;
    struct hash hash;
    long long code;
    int exited, credit_due;
};

static struct stream streams[MAX_SESSIONS];
static unsigned count, created, attached, started, exited;
static uint64_t window = 512 << 10, credit_step, bytes, frames, gaps, notices;
static int view, welcomed;
static unsigned char nonce[16], token[1024];
static size_t token_size;
static double echoed_at;
static unsigned char echoed;
static struct out tx;
static struct link server;

/* --- receiving --------------------------------------------------------------------------------- */
static void consume(struct stream *s, const unsigned char *p, size_t size)
{
    if (!s->offset)
        started++;
    hash_feed(&s->hash, p, size);
    s->offset += size;
    bytes += size;
    if (s->offset > s->granted)
        die("malformed Output: %s exceeds its credit", s->id);
    if (s == streams) {
        echoed_at = now();
        echoed = p[size - 1];
    }
    s->credit_due = s->offset + window - s->granted >= credit_step;
}

static void send_credits(void)
{
    for (struct stream *s = streams; s < streams + count; s++) {
        if (!s->credit_due || s->exited)
            continue;
        s->credit_due = 0;
        s->granted = s->offset + window;
        frame_begin(&tx, T_CREDIT, 2);
        out_uint(&tx, (uint64_t)(s - streams));
        out_uint(&tx, s->granted);
        frame_end(&tx);
    }
}

static struct stream *stream_of(uint64_t channel)
{
    if (channel >= count)
        die("malformed frame: no channel %llu", (unsigned long long)channel);
    return &streams[channel];
}

static struct stream *output_begins(uint64_t channel, uint64_t offset)
{
    struct stream *s = stream_of(channel);
    if (offset != s->offset)
        die("malformed Output: %s continues at %llu, not at %llu", s->id, (unsigned long long)offset,
            (unsigned long long)s->offset);
    frames++;
    return s;
}

static void on_response(struct in *in)
{
    uint64_t id = in_uint(in, "request id");
    if (id >= count) {
        attached++;
        return;
    }
    for (uint64_t pairs = in_want(in, MAP, "result").value; pairs--;) {
        struct item key = in_next(in);
        if (is_text(key, "id"))
            streams[id].id = text_of(in_want(in, TEXT, "id"));
        else
            in_skip(in);
    }
    if (!streams[id].id)
        die("malformed Response: no id");
    created++;
}

static void on_mark(struct in *in)
{
    struct stream *s = stream_of(in_uint(in, "channel"));
    uint64_t offset = in_uint(in, "offset"), number = in_uint(in, "number");
    struct item kind = in_next(in);
    if (number != s->mark++ || offset > s->offset)
        die("malformed Mark: %s: number %llu at %llu", s->id, (unsigned long long)number, (unsigned long long)offset);
    if (!is_text(kind, "exit") || s->exited)
        return;
    if (offset != s->offset)
        die("malformed Mark: %s ended at %llu, %llu received", s->id, (unsigned long long)offset,
            (unsigned long long)s->offset);
    s->code = -1;
    for (uint64_t pairs = in_want(in, MAP, "data").value; pairs--;) {
        struct item key = in_next(in);
        if (!is_text(key, "code")) {
            in_skip(in);
            continue;
        }
        struct item code = in_next(in);
        if (code.kind == UINT)
            s->code = (long long)code.value;
    }
    s->exited = 1;
    exited++;
}

static void on_frame(const unsigned char *body, size_t size)
{
    struct in in = {body, body + size};
    in_want(&in, ARRAY, "frame");
    uint64_t type = in_uint(&in, "type");
    if (type == T_OUTPUT) { /* in another form than the fixed one: legal, and slower */
        uint64_t channel = in_uint(&in, "channel");
        struct stream *s = output_begins(channel, in_uint(&in, "offset"));
        struct item data = in_want(&in, BIN, "data");
        consume(s, data.data, data.value);
    } else if (type == T_MARK) {
        on_mark(&in);
    } else if (type == T_RESPONSE) {
        on_response(&in);
    } else if (type == T_GAP) {
        struct stream *s = stream_of(in_uint(&in, "channel"));
        in_skip(&in);
        in_skip(&in);
        s->offset = in_uint(&in, "to");
        s->mark = in_uint(&in, "mark");
        s->granted = s->offset + window;
        gaps++;
    } else if (type == T_PING) {
        uint64_t token = in_uint(&in, "token");
        frame_begin(&tx, T_PONG, 1);
        out_uint(&tx, token);
        frame_end(&tx);
    } else if (type == T_WELCOME) {
        for (int i = 0; i < 4; i++)
            in_skip(&in);
        struct item item = in_want(&in, BIN, "nonce");
        if (item.value != sizeof nonce || memcmp(item.data, nonce, sizeof nonce))
            die("malformed Welcome: not our nonce");
        welcomed = 1;
    } else if (type == T_NOTICE) {
        fprintf(stderr, "notice: %s\n", text_of(in_next(&in)));
        notices++;
    } else if (type == T_ERROR || type == T_FAILURE || type == T_DETACHED) {
        if (type != T_ERROR)
            in_skip(&in);
        char *code = text_of(in_next(&in));
        die("the server says: %s: %s", code, text_of(in_next(&in)));
    } /* others are not for the bench: Ack, Refused of bytes that it never sends */
}

/* Frames from pieces of any size.  Output data is hashed where it lies and never copied. */
static void feed(const unsigned char *p, size_t size)
{
    static unsigned char *held;
    static size_t has, needed = 4, data_left;
    static struct stream *current;
    if (!held && !(held = malloc(4 + MAX_FRAME)))
        die("out of memory");
    while (size) {
        if (data_left) {
            size_t take = data_left < size ? data_left : size;
            consume(current, p, take);
            p += take;
            size -= take;
            data_left -= take;
            continue;
        }
        size_t take = needed - has < size ? needed - has : size;
        memcpy(held + has, p, take);
        has += take;
        p += take;
        size -= take;
        if (has < needed)
            continue;
        size_t length = get_be(held, 4);
        if (has == 4) {
            if (length == 0 || length > MAX_FRAME)
                die("malformed frame: length %zu", length);
            needed = 4 + (length < OUTPUT_BODY ? length : OUTPUT_BODY);
            continue;
        }
        if (has == OUTPUT_HEADER && is_output_header(held + 4) && get_be(held + 21, 4) == length - OUTPUT_BODY) {
            current = output_begins(get_be(held + 7, 4), get_be(held + 12, 8));
            data_left = length - OUTPUT_BODY;
        } else if (has < 4 + length) {
            needed = 4 + length;
            continue;
        } else {
            on_frame(held + 4, length);
        }
        has = 0;
        needed = 4;
    }
}

static void pump(double seconds)
{
    static double heard;
    size_t got = link_pump(&server, seconds);
    send_credits();
    link_send(&server, &tx);
    if (server.closed)
        die("the server hung up: %u of %u created, %u attached, %u started, %u exited", created, count, attached,
            started, exited);
    if (got || !heard)
        heard = now();
    else if (now() - heard > PATIENCE)
        die("no byte for %.0f s: %u of %u created, %u attached, %u started, %u exited; first session at %llu, "
            "granted %llu", PATIENCE, created, count, attached, started, exited,
            (unsigned long long)streams[0].offset, (unsigned long long)streams[0].granted);
}

/* --- asking ------------------------------------------------------------------------------------ */
static void random_bytes(unsigned char *p, size_t size)
{
    if (getrandom(p, size, 0) != (ssize_t)size)
        die("cannot get random bytes");
}

static void request(uint64_t id, const char *method, unsigned params)
{
    frame_begin(&tx, T_REQUEST, 4);
    out_uint(&tx, id);
    out_text(&tx, method);
    out_map(&tx, params);
}

static void request_end(void)
{
    unsigned char key[16];
    random_bytes(key, sizeof key);
    out_bin(&tx, key, sizeof key);
    frame_end(&tx);
    link_send(&server, &tx);
}

static void read_token(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, token, sizeof token);
    if (got <= 0)
        die("cannot read a token from %s", path);
    token_size = (size_t)got;
    close(fd);
}

static void greet(void)
{
    unsigned char id[16];
    random_bytes(id, sizeof id);
    random_bytes(nonce, sizeof nonce);
    frame_begin(&tx, T_HELLO, 6);
    out_bin(&tx, "ptymux", 6);
    out_array(&tx, 2);
    out_uint(&tx, 1);
    out_uint(&tx, 1);
    out_bin(&tx, id, sizeof id);
    if (token_size)
        out_bin(&tx, token, token_size);
    else
        out_nil(&tx);
    out_bin(&tx, nonce, sizeof nonce);
    out_map(&tx, 0);
    frame_end(&tx);
    link_send(&server, &tx);
    while (!welcomed)
        pump(1);
}

static void create(unsigned index, char **command, int words, const char *policy, uint64_t history)
{
    char text[16];
    snprintf(text, sizeof text, "%u", index);
    request(index, "create", history ? 4 : 3);
    out_text(&tx, "argv");
    out_array(&tx, (unsigned)words + 1);
    for (int i = 0; i < words; i++)
        out_text(&tx, command[i]);
    out_text(&tx, text);
    out_text(&tx, "policy");
    out_text(&tx, policy);
    out_text(&tx, "size");
    out_array(&tx, 2);
    out_uint(&tx, 80);
    out_uint(&tx, 24);
    if (history) {
        out_text(&tx, "history");
        out_uint(&tx, history);
    }
    request_end();
}

static void attach(unsigned index)
{
    struct stream *s = &streams[index];
    hash_init(&s->hash);
    s->granted = window;
    request(count + index, "attach", 6);
    out_text(&tx, "session");
    out_text(&tx, s->id);
    out_text(&tx, "channel");
    out_uint(&tx, index);
    out_text(&tx, "window");
    out_uint(&tx, window);
    out_text(&tx, "cursor");
    out_nil(&tx);
    out_text(&tx, "repair");
    out_text(&tx, "bytes");
    out_text(&tx, "view");
    out_bool(&tx, view);
    request_end();
}

static void open_gate(const char *path)
{
    while (started < count)
        pump(1);
    /* Kept open until the end: a session that is late to its open() must not wait for a writer that came and went.
     * Read and write: opening a FIFO so never waits for the other side. */
    if (open(path, O_RDWR | O_CLOEXEC) < 0)
        die("cannot open %s: %s", path, strerror(errno));
}

/* --- measuring --------------------------------------------------------------------------------- */
static void print_usage(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("\"user\": %.3f, \"system\": %.3f, ", (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec * 1e-6,
           (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec * 1e-6);
    printf("\"gaps\": %llu, \"notices\": %llu, \"frames\": %llu", (unsigned long long)gaps,
           (unsigned long long)notices, (unsigned long long)frames);
}

static void transfer(double began)
{
    while (exited < count)
        pump(1);
    printf("{\"wall\": %.6f, \"bytes\": %llu, ", now() - began, (unsigned long long)bytes);
    print_usage();
    printf(", \"sessions\": [");
    for (struct stream *s = streams; s < streams + count; s++)
        printf("%s{\"id\": \"%s\", \"bytes\": %llu, \"hash\": \"%016llx\", \"code\": %lld}", s == streams ? "" : ", ",
               s->id, (unsigned long long)s->offset, (unsigned long long)hash_value(&s->hash), s->code);
    printf("]}\n");
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void echo(double seconds, double gap)
{
    size_t most = (size_t)(seconds * 1e4) + 16, taken = 0;
    double *times = calloc(most, sizeof *times), sent_at = 0;
    if (!times)
        die("out of memory");
    double begin = now() + 0.5, end = begin + seconds, next = gap > 0 ? begin : end + 1; /* let the flood settle */
    uint64_t flood = 0, typed = 0, seed = 88172645463325252ull;
    unsigned char key = 'a';
    int measuring = 0;
    for (double t = now(); t < end; t = now()) {
        if (!measuring && t >= begin) {
            measuring = 1;
            flood = bytes - streams[0].offset;
            begin = t;
        }
        if (!sent_at && t >= next && taken < most) {
            key = key == 'z' ? 'a' : (unsigned char)(key + 1);
            frame_begin(&tx, T_INPUT, 3);
            out_text(&tx, streams[0].id);
            out_uint(&tx, typed++);
            out_bin(&tx, &key, 1);
            frame_end(&tx);
            echoed = 0;
            sent_at = now();
            link_send(&server, &tx);
        }
        double until = sent_at ? end : next < end ? next : end;
        if (!measuring && begin < until)
            until = begin;
        pump(until > t ? until - t : 0);
        if (sent_at && echoed == key) {
            times[taken++] = echoed_at - sent_at;
            sent_at = 0;
            /* Half to one and a half gaps, so that keystrokes do not fall into step with anybody's timer. */
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            next = echoed_at + gap * (0.5 + (double)(seed >> 11) / 9007199254740992.0);
        }
    }
    flood = bytes - streams[0].offset - flood;
    if (sent_at && now() - sent_at > seconds / 2)
        die("no echo for %.1f s", now() - sent_at);
    qsort(times, taken, sizeof *times, by_value);
    printf("{\"wall\": %.6f, \"bytes\": %llu, \"echoes\": %zu, ", now() - begin, (unsigned long long)flood, taken);
    static const double quantiles[] = {0.5, 0.9, 0.99};
    for (int i = 0; taken && i < 3; i++)
        printf("\"p%.0f\": %.4f, ", quantiles[i] * 100, times[(size_t)((double)(taken - 1) * quantiles[i])] * 1e3);
    print_usage();
    printf("}\n");
    free(times);
}

static int hash_input(void)
{
    static unsigned char buffer[1 << 20];
    struct hash hash;
    hash_init(&hash);
    for (ssize_t got; (got = read(0, buffer, sizeof buffer)) > 0;)
        hash_feed(&hash, buffer, (size_t)got);
    printf("%016llx %llu\n", (unsigned long long)hash_value(&hash), (unsigned long long)hash.total);
    return 0;
}

int main(int argc, char **argv)
{
    enum { UNIX = 1, WEBSOCKET, CREATE, SESSION, POLICY, HISTORY, WINDOW, CREDIT, VIEW, TOKEN_FILE, GATE, ECHO_TIME, GAP_TIME, HASH };
    static const struct option options[] = {
        {"unix", 1, 0, UNIX}, {"websocket", 1, 0, WEBSOCKET}, {"create", 1, 0, CREATE}, {"session", 1, 0, SESSION},
        {"policy", 1, 0, POLICY}, {"history", 1, 0, HISTORY}, {"window", 1, 0, WINDOW}, {"credit", 1, 0, CREDIT},
        {"view", 0, 0, VIEW}, {"token-file", 1, 0, TOKEN_FILE}, {"gate", 1, 0, GATE}, {"echo", 1, 0, ECHO_TIME}, {"gap", 1, 0, GAP_TIME},
        {"hash", 0, 0, HASH}, {0, 0, 0, 0},
    };
    const char *policy = "hold", *gate = NULL;
    unsigned to_create = 0;
    uint64_t history = 0;
    double echo_time = 0, gap = 0.005;
    server = (struct link){.fd = -1, .deliver = feed};
    for (int option; (option = getopt_long(argc, argv, "+", options, NULL)) != -1;) {
        switch (option) {
        case UNIX: connect_unix(&server, optarg); break;
        case WEBSOCKET: connect_websocket(&server, optarg); break;
        case CREATE: to_create = (unsigned)atoi(optarg); break;
        case SESSION:
            if (count == MAX_SESSIONS)
                die("too many sessions");
            streams[count++].id = optarg;
            break;
        case POLICY: policy = optarg; break;
        case HISTORY: history = strtoull(optarg, NULL, 10); break;
        case WINDOW: window = strtoull(optarg, NULL, 10); break;
        case CREDIT: credit_step = strtoull(optarg, NULL, 10); break;
        case VIEW: view = 1; break;
        case TOKEN_FILE: read_token(optarg); break;
        case GATE: gate = optarg; break;
        case ECHO_TIME: echo_time = atof(optarg); break;
        case GAP_TIME: gap = atof(optarg) / 1e3; break;
        case HASH: return hash_input();
        default: return 2;
        }
    }
    if (server.fd < 0 || !count == !to_create || to_create > MAX_SESSIONS)
        die("usage: client (--unix PATH | --websocket HOST:PORT) (--create N [...] -- COMMAND | --session ID ...)");
    if (!credit_step)
        credit_step = window / 4;
    fcntl(server.fd, F_SETFL, O_NONBLOCK);
    greet();
    if (to_create) {
        count = to_create;
        for (unsigned i = 0; i < count; i++) {
            create(i, argv + optind, argc - optind, policy, history);
            while (i >= created + 32) /* the agent takes 64 unanswered requests */
                pump(1);
        }
        while (created < count)
            pump(1);
    }
    for (unsigned i = 0; i < count; i++) {
        attach(i);
        while (i >= attached + 32)
            pump(1);
    }
    while (attached < count)
        pump(1);
    if (gate)
        open_gate(gate);
    double began = now();
    if (echo_time > 0)
        echo(echo_time, gap);
    else
        transfer(began);
    return 0;
}
