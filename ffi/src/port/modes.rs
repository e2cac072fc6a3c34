//! The modes and offloads of a port: what the configuration requests and the device supports.
//!
//! Promises: nothing here calls the device. An unsupported offload is left out.

use dpdk_sys as sys;

use super::config::PortConfig;

/// The configuration for a device with these capabilities, without the RSS key and the offload that depends on the
/// pool, which only exist during the call that configures the device.
pub(super) fn modes(config: &PortConfig, info: &sys::rte_eth_dev_info) -> sys::rte_eth_conf {
    let mut conf = sys::rte_eth_conf::default();
    let rss = config.rss.hash.bits() & info.flow_type_rss_offloads;
    if config.queues > 1 && rss != 0 {
        conf.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf.rss_hf = rss;
        conf.rxmode.offloads |= sys::DPDK_SYS_RX_OFFLOAD_RSS_HASH & info.rx_offload_capa;
    }
    if config.verify_checksums {
        let checksums = sys::DPDK_SYS_RX_OFFLOAD_IPV4_CKSUM
            | sys::DPDK_SYS_RX_OFFLOAD_UDP_CKSUM
            | sys::DPDK_SYS_RX_OFFLOAD_TCP_CKSUM;
        conf.rxmode.offloads |= checksums & info.rx_offload_capa;
    }
    if config.strip_vlan {
        conf.rxmode.offloads |= sys::DPDK_SYS_RX_OFFLOAD_VLAN_STRIP & info.rx_offload_capa;
    }
    if let Some(mtu) = config.mtu {
        conf.rxmode.mtu = u32::from(mtu);
    }
    if config.send_segments {
        conf.txmode.offloads = sys::DPDK_SYS_TX_OFFLOAD_MULTI_SEGS & info.tx_offload_capa;
    }
    conf
}
