/*
 * The parts of DPDK, from 22.11 on, for which bindgen generates bindings, and what bindgen can't read from C.
 *
 * `struct rte_mbuf` moved its fields into anonymous unions in 24.03, so Rust reads them by the offsets below, whose
 * source text works in every release. Macros that bindgen cannot evaluate are constants here, and one-line functions
 * read bit-fields and thread-locals. Nothing here decides anything.
 */
#include <stddef.h>
#include <stdint.h>

#include <rte_config.h>
#include <rte_common.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

enum {
	DPDK_SYS_MBUF_SIZE = sizeof(struct rte_mbuf),
	DPDK_SYS_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	DPDK_SYS_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	DPDK_SYS_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	DPDK_SYS_MBUF_PORT = offsetof(struct rte_mbuf, port),
	DPDK_SYS_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	DPDK_SYS_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	DPDK_SYS_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	DPDK_SYS_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
	DPDK_SYS_MBUF_HASH_RSS = offsetof(struct rte_mbuf, hash.rss),
	DPDK_SYS_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
};

static const uint64_t DPDK_SYS_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
static const uint64_t DPDK_SYS_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;
static const uint64_t DPDK_SYS_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t DPDK_SYS_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t DPDK_SYS_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t DPDK_SYS_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t DPDK_SYS_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t DPDK_SYS_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;

static const uint64_t DPDK_SYS_RX_OFFLOAD_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t DPDK_SYS_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t DPDK_SYS_RX_OFFLOAD_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t DPDK_SYS_RX_OFFLOAD_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t DPDK_SYS_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t DPDK_SYS_RX_OFFLOAD_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t DPDK_SYS_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t DPDK_SYS_TX_OFFLOAD_MBUF_FAST_FREE = RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;

static const uint64_t DPDK_SYS_RSS_IPV4 = RTE_ETH_RSS_IPV4;
static const uint64_t DPDK_SYS_RSS_FRAG_IPV4 = RTE_ETH_RSS_FRAG_IPV4;
static const uint64_t DPDK_SYS_RSS_IPV4_TCP = RTE_ETH_RSS_NONFRAG_IPV4_TCP;
static const uint64_t DPDK_SYS_RSS_IPV4_UDP = RTE_ETH_RSS_NONFRAG_IPV4_UDP;
static const uint64_t DPDK_SYS_RSS_IPV4_SCTP = RTE_ETH_RSS_NONFRAG_IPV4_SCTP;
static const uint64_t DPDK_SYS_RSS_IPV4_OTHER = RTE_ETH_RSS_NONFRAG_IPV4_OTHER;
static const uint64_t DPDK_SYS_RSS_IPV6 = RTE_ETH_RSS_IPV6;
static const uint64_t DPDK_SYS_RSS_FRAG_IPV6 = RTE_ETH_RSS_FRAG_IPV6;
static const uint64_t DPDK_SYS_RSS_IPV6_TCP = RTE_ETH_RSS_NONFRAG_IPV6_TCP;
static const uint64_t DPDK_SYS_RSS_IPV6_UDP = RTE_ETH_RSS_NONFRAG_IPV6_UDP;
static const uint64_t DPDK_SYS_RSS_IPV6_SCTP = RTE_ETH_RSS_NONFRAG_IPV6_SCTP;
static const uint64_t DPDK_SYS_RSS_IPV6_OTHER = RTE_ETH_RSS_NONFRAG_IPV6_OTHER;
static const uint64_t DPDK_SYS_RSS_IPV6_EX = RTE_ETH_RSS_IPV6_EX;

static const uint64_t DPDK_SYS_LCORE_ANY = LCORE_ID_ANY;
static const int32_t DPDK_SYS_SOCKET_ANY = SOCKET_ID_ANY;

/* rte_errno is a thread-local behind a macro. */
static inline int dpdk_sys_errno(void) { return rte_errno; }

/* The link's fields are bit-fields, and in 24.11 members of an anonymous union. */
static inline int dpdk_sys_link_up(const struct rte_eth_link *link) { return link->link_status == RTE_ETH_LINK_UP; }
static inline uint32_t dpdk_sys_link_mbps(const struct rte_eth_link *link) { return link->link_speed; }

/* The cache of a mempool is an array whose element's size depends on the build's options. */
static inline uint32_t dpdk_sys_mempool_cached(const struct rte_mempool *mp, unsigned int lcore)
{
	return mp->cache_size == 0 ? 0 : mp->local_cache[lcore].len;
}
