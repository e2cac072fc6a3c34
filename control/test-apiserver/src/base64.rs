//! Base64 encoding.

/// Encodes bytes as in RFC 4648, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for n in 0..4 {
            if n <= chunk.len() {
                text.push(char::from(LETTERS[(group >> (18 - 6 * n)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}
