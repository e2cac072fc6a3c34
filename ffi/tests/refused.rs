//! An EAL that does not start, in a separate process.

use dpdk::{Eal, EalConfig, EalError, LogLevel, Memory};

#[test]
fn an_eal_that_does_not_start_reports_its_arguments() {
    let config = EalConfig {
        memory: Memory::NoHuge { mib: 64 },
        vdevs: vec!["net_nosuch0,size=100".to_owned()],
        log_level: LogLevel::Critical,
        ..EalConfig::default()
    };
    let nul = EalConfig { file_prefix: Some("a\0b".to_owned()), ..config.clone() };
    assert!(matches!(Eal::init(&nul), Err(EalError::Argument(_))), "found before anything is started");

    let error = Eal::init(&config).unwrap_err().to_string();
    assert!(error.starts_with("the EAL did not start: "), "{error}");
    assert!(error.contains("--no-huge") && error.contains("--vdev=net_nosuch0,size=100"), "{error}");
    assert!(matches!(Eal::init(&config), Err(EalError::AlreadyInitialised)));
}
