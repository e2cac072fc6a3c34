/*
 * An SCTP client and server for the end-to-end tests: the SCTP of usrsctp (FreeBSD's, in user space), because kernels
 * without SCTP are common. mod.rs compiles it and runs it in the namespaces of the lab.
 *
 *   peer serve NAME PORT[,PORT] ADDRESS...   accepts associations at every address, greets each with
 *                                            "NAME client=ADDRESS:PORT", and returns every message
 *   peer client FROM TO PORT TIMES MESSAGES LINGER
 *                                            opens TIMES associations one after the other, sends MESSAGES messages on
 *                                            each, compares the replies, and shuts the association down. Then it
 *                                            stays for LINGER milliseconds: if its last SHUTDOWN COMPLETE was lost, it
 *                                            answers the repeated SHUTDOWN ACK (RFC 9260 section 8.4)
 *
 * usrsctp gets its packets from this program (AF_CONN) and not from its own sockets: those would send from an address that the
 * kernel chooses, which for a server in a DSR mode is not the VIP. Here each local address has a raw socket that is
 * bound to it. The kernel adds the IP header, usrsctp the whole SCTP packet with its CRC32c, and it checks the CRC32c of
 * received packets. An association has one address on each side.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <usrsctp.h>

enum { MESSAGE_MAX = 20000, PACKET_MAX = 65536, PORTS_MAX = 4, SECONDS_MAX = 60 };

/* A pair of addresses. usrsctp identifies it by its pointer. */
struct path {
	int fd;
	struct sockaddr_storage local, peer;
	struct path *next;
};

static struct path *paths;
static pthread_mutex_t paths_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *server_name;
static uint16_t ports[PORTS_MAX];
static int port_count;

static void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static socklen_t length_of(const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static struct sockaddr_storage parse(const char *text)
{
	struct sockaddr_storage address;
	memset(&address, 0, sizeof address);
	struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1)
		address.ss_family = AF_INET;
	else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1)
		address.ss_family = AF_INET6;
	else
		die("no address: %s", text);
	return address;
}

static void print(const struct sockaddr_storage *address, char *text, size_t size)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
	const void *bytes = address->ss_family == AF_INET ? (const void *)&v4->sin_addr : (const void *)&v6->sin6_addr;
	inet_ntop(address->ss_family, bytes, text, (socklen_t)size);
}

static int same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	char one[INET6_ADDRSTRLEN], other[INET6_ADDRSTRLEN];
	print(a, one, sizeof one);
	print(b, other, sizeof other);
	return strcmp(one, other) == 0;
}

static int raw_socket(const struct sockaddr_storage *local)
{
	int fd = socket(local->ss_family, SOCK_RAW, IPPROTO_SCTP);
	if (fd < 0 || bind(fd, (const struct sockaddr *)local, length_of(local)) < 0)
		die("a raw socket: %s", strerror(errno));
	int bytes = 4 << 20;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
	return fd;
}

/* Called by usrsctp with a packet for a path. A packet that cannot be sent is lost. */
static int send_packet(void *path_pointer, void *packet, size_t length, uint8_t tos, uint8_t set_df)
{
	struct path *path = path_pointer;
	(void)tos;
	(void)set_df;
	ssize_t sent = sendto(path->fd, packet, length, 0, (struct sockaddr *)&path->peer, length_of(&path->peer));
	return sent < 0 ? errno : 0;
}

static struct path *new_path(int fd, const struct sockaddr_storage *local, const struct sockaddr_storage *peer)
{
	struct path *path = calloc(1, sizeof *path);
	if (!path)
		die("no memory");
	path->fd = fd;
	path->local = *local;
	path->peer = *peer;
	usrsctp_register_address(path);
	return path;
}

static struct sockaddr_conn end_of(struct path *path, uint16_t port)
{
	struct sockaddr_conn end;
	memset(&end, 0, sizeof end);
	end.sconn_family = AF_CONN;
	end.sconn_port = htons(port);
	end.sconn_addr = path;
	return end;
}

static void *run_timers(void *unused)
{
	struct timespec before, now, pause = {0, 5000000};
	(void)unused;
	clock_gettime(CLOCK_MONOTONIC, &before);
	for (;;) {
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		long elapsed = (now.tv_sec - before.tv_sec) * 1000 + (now.tv_nsec - before.tv_nsec) / 1000000;
		if (elapsed > 0) {
			usrsctp_handle_timers((uint32_t)elapsed);
			before = now;
		}
	}
	return NULL;
}

static void start(void *(*routine)(void *), void *argument)
{
	pthread_t thread;
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	if (pthread_create(&thread, &attributes, routine, argument) != 0)
		die("no thread");
	pthread_attr_destroy(&attributes);
	pthread_detach(thread);
}

/* Receives from a raw socket. With IPv4 the header comes first, with IPv6 it does not. */
static ssize_t receive(int fd, uint8_t *packet, uint8_t **sctp, struct sockaddr_storage *from)
{
	socklen_t size = sizeof *from;
	ssize_t length = recvfrom(fd, packet, PACKET_MAX, 0, (struct sockaddr *)from, &size);
	if (length <= 0)
		return -1;
	ssize_t header = from->ss_family == AF_INET ? (packet[0] & 0x0f) * 4 : 0;
	*sctp = packet + header;
	return length - header;
}

/* Receives one message, of which usrsctp may deliver parts. Returns its length, 0 at the end, -1 after an error, and
 * the state of the association in `state` if that has changed. */
static ssize_t receive_message(struct socket *socket, uint8_t *message, int *state)
{
	size_t have = 0;
	for (;;) {
		struct sockaddr_conn from;
		struct sctp_rcvinfo info;
		socklen_t from_size = sizeof from, info_size = sizeof info;
		unsigned int kind = 0;
		int flags = 0;
		ssize_t part = usrsctp_recvv(socket, message + have, MESSAGE_MAX + 1 - have, (struct sockaddr *)&from,
					     &from_size, &info, &info_size, &kind, &flags);
		if (part <= 0)
			return part;
		if (flags & MSG_NOTIFICATION) {
			const union sctp_notification *notification = (const union sctp_notification *)(message + have);
			if (notification->sn_header.sn_type == SCTP_ASSOC_CHANGE)
				*state = notification->sn_assoc_change.sac_state;
			if (*state == SCTP_SHUTDOWN_COMP || *state == SCTP_COMM_LOST || *state == SCTP_CANT_STR_ASSOC)
				return 0;
			continue;
		}
		have += (size_t)part;
		if (flags & MSG_EOR)
			return (ssize_t)have;
		if (have > MESSAGE_MAX)
			return -1;
	}
}

static void report_changes(struct socket *socket)
{
	struct sctp_event event = {.se_assoc_id = SCTP_ALL_ASSOC, .se_type = SCTP_ASSOC_CHANGE, .se_on = 1};
	int on = 1;
	if (usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_EVENT, &event, sizeof event) < 0 ||
	    usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_NODELAY, &on, sizeof on) < 0)
		die("socket options: %s", strerror(errno));
}

struct accepted {
	struct socket *socket;
	struct path *path;
	uint16_t port;
};

static void *serve_association(void *argument)
{
	struct accepted accepted = *(struct accepted *)argument;
	uint8_t *message = malloc(MESSAGE_MAX + 1);
	char client[INET6_ADDRSTRLEN], greeting[256];
	int state = 0;
	unsigned long messages = 0, bytes = 0;
	ssize_t length;

	free(argument);
	print(&accepted.path->peer, client, sizeof client);
	int greeted = snprintf(greeting, sizeof greeting,
			       accepted.path->peer.ss_family == AF_INET ? "%s client=%s:%u" : "%s client=[%s]:%u",
			       server_name, client, accepted.port);
	usrsctp_sendv(accepted.socket, greeting, (size_t)greeted, NULL, 0, NULL, 0, SCTP_SENDV_NOINFO, 0);
	while ((length = receive_message(accepted.socket, message, &state)) > 0) {
		messages++;
		bytes += (unsigned long)length;
		if (usrsctp_sendv(accepted.socket, message, (size_t)length, NULL, 0, NULL, 0, SCTP_SENDV_NOINFO, 0) < 0)
			break;
	}
	printf("%s messages=%lu bytes=%lu %s\n", greeting, messages, bytes,
	       state == SCTP_COMM_LOST || length < 0 ? "lost" : "shut down");
	fflush(stdout);
	usrsctp_close(accepted.socket);
	free(message);
	return NULL;
}

static void *accept_all(void *argument)
{
	struct accepted *listener = argument;
	for (;;) {
		struct sockaddr_conn peer;
		socklen_t size = sizeof peer;
		struct accepted *accepted = malloc(sizeof *accepted);
		if (!accepted)
			die("no memory");
		accepted->path = listener->path;
		accepted->socket = usrsctp_accept(listener->socket, (struct sockaddr *)&peer, &size);
		if (!accepted->socket)
			die("accept: %s", strerror(errno));
		accepted->port = ntohs(peer.sconn_port);
		start(serve_association, accepted);
	}
	return NULL;
}

static void listen_on(struct path *path, uint16_t port)
{
	struct accepted *listener = calloc(1, sizeof *listener);
	struct sockaddr_conn end = end_of(path, port);
	if (!listener)
		die("no memory");
	listener->path = path;
	listener->socket = usrsctp_socket(AF_CONN, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
	if (!listener->socket)
		die("a socket: %s", strerror(errno));
	report_changes(listener->socket);
	if (usrsctp_bind(listener->socket, (struct sockaddr *)&end, sizeof end) < 0 ||
	    usrsctp_listen(listener->socket, 64) < 0)
		die("port %u: %s", port, strerror(errno));
	start(accept_all, listener);
}

struct local {
	int fd;
	struct sockaddr_storage address;
};

static void *serve_address(void *argument)
{
	struct local *local = argument;
	uint8_t *packet = malloc(PACKET_MAX), *sctp;
	for (;;) {
		struct sockaddr_storage from;
		struct path *path;
		ssize_t length = receive(local->fd, packet, &sctp, &from);
		if (length < 0)
			continue;
		if (from.ss_family == AF_INET)
			((struct sockaddr_in *)&from)->sin_port = 0;
		else
			((struct sockaddr_in6 *)&from)->sin6_port = 0;
		pthread_mutex_lock(&paths_lock);
		for (path = paths; path; path = path->next)
			if (path->fd == local->fd && same(&path->peer, &from))
				break;
		if (!path) {
			path = new_path(local->fd, &local->address, &from);
			for (int n = 0; n < port_count; n++)
				listen_on(path, ports[n]);
			path->next = paths;
			paths = path;
		}
		pthread_mutex_unlock(&paths_lock);
		usrsctp_conninput(path, sctp, (size_t)length, 0);
	}
	return NULL;
}

static int serve(int count, char **arguments)
{
	server_name = arguments[0];
	for (char *text = strtok(arguments[1], ","); text && port_count < PORTS_MAX; text = strtok(NULL, ","))
		ports[port_count++] = (uint16_t)atoi(text);
	for (int n = 2; n < count; n++) {
		struct local *local = calloc(1, sizeof *local);
		if (!local)
			die("no memory");
		local->address = parse(arguments[n]);
		local->fd = raw_socket(&local->address);
		start(serve_address, local);
	}
	printf("ready\n");
	fflush(stdout);
	for (;;)
		pause();
	return 0;
}

static void *receive_answers(void *argument)
{
	struct path *path = argument;
	uint8_t *packet = malloc(PACKET_MAX), *sctp;
	for (;;) {
		struct sockaddr_storage from;
		ssize_t length = receive(path->fd, packet, &sctp, &from);
		/* Only the peer's packets. The raw socket also receives packets of others. */
		if (length >= 0 && same(&from, &path->peer))
			usrsctp_conninput(path, sctp, (size_t)length, 0);
	}
	return NULL;
}

/* One association. `n` selects the lengths and contents of its messages. */
static void exchange_once(struct path *path, uint16_t port, int n, int messages)
{
	static uint8_t sent[MESSAGE_MAX + 1], received[MESSAGE_MAX + 1];
	struct sockaddr_conn own = end_of(path, 0), to = end_of(path, port);
	struct socket *socket = usrsctp_socket(AF_CONN, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
	int state = 0;

	if (!socket)
		die("a socket: %s", strerror(errno));
	report_changes(socket);
	if (usrsctp_bind(socket, (struct sockaddr *)&own, sizeof own) < 0)
		die("bind: %s", strerror(errno));
	if (usrsctp_connect(socket, (struct sockaddr *)&to, sizeof to) < 0)
		die("association %d: connect: %s", n, strerror(errno));
	ssize_t length = receive_message(socket, received, &state);
	if (length <= 0)
		die("association %d: no greeting, state %d", n, state);
	printf("%.*s\n", (int)length, (const char *)received);

	for (int message = 0; message < messages; message++) {
		size_t bytes = 1 + (size_t)((n * 31 + message * 4733) % MESSAGE_MAX);
		for (size_t at = 0; at < bytes; at++)
			sent[at] = (uint8_t)(at * 31 + (size_t)(n * 17 + message) + at / 251);
		if (usrsctp_sendv(socket, sent, bytes, NULL, 0, NULL, 0, SCTP_SENDV_NOINFO, 0) < 0)
			die("association %d: message %d: %s", n, message, strerror(errno));
		length = receive_message(socket, received, &state);
		if (length != (ssize_t)bytes || memcmp(sent, received, bytes) != 0)
			die("association %d: message %d: %zu bytes sent, %zd came back, state %d", n, message, bytes,
			    length, state);
	}
	if (usrsctp_shutdown(socket, SHUT_WR) < 0)
		die("association %d: shutdown: %s", n, strerror(errno));
	while (receive_message(socket, received, &state) > 0)
		;
	if (state != SCTP_SHUTDOWN_COMP)
		die("association %d: not shut down but in state %d", n, state);
	usrsctp_close(socket);
}

static int run_client(char **arguments)
{
	struct sockaddr_storage from = parse(arguments[0]), to = parse(arguments[1]);
	uint16_t port = (uint16_t)atoi(arguments[2]);
	int times = atoi(arguments[3]), messages = atoi(arguments[4]), linger = atoi(arguments[5]);

	alarm(SECONDS_MAX);
	struct path *path = new_path(raw_socket(&from), &from, &to);
	start(receive_answers, path);
	for (int n = 0; n < times; n++)
		exchange_once(path, port, n, messages);
	fflush(stdout);
	usleep((useconds_t)linger * 1000);
	return 0;
}

int main(int count, char **arguments)
{
	usrsctp_init_nothreads(0, send_packet, NULL);
	usrsctp_sysctl_set_sctp_ecn_enable(0);
	/* A lost packet is sent again after 0.2 s and not after a second. The network has no latency. */
	usrsctp_sysctl_set_sctp_rto_min_default(200);
	usrsctp_sysctl_set_sctp_rto_initial_default(500);
	start(run_timers, NULL);
	if (count >= 5 && strcmp(arguments[1], "serve") == 0)
		return serve(count - 2, arguments + 2);
	/* A late packet after the end is not answered with ABORT, which could overtake the SHUTDOWN COMPLETE. */
	usrsctp_sysctl_set_sctp_blackhole(2);
	if (count == 8 && strcmp(arguments[1], "client") == 0)
		return run_client(arguments + 2);
	die("usage: peer serve NAME PORT[,PORT] ADDRESS... | peer client FROM TO PORT TIMES MESSAGES LINGER");
	return 1;
}
