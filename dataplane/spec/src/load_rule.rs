//! The rules by which the schedulers `lc`, `sed` and `nq` compare loads.

tidegate_wire::named! {
    /// How loads are compared. The cost is divided by the weight, and the lowest quotient is best.
    #[derive(Hash)]
    pub enum LoadRule {
        /// `lc`: 256 * active + ended.
        LeastConnections => "lc",
        /// `sed`, shortest expected delay: active + the new connection.
        ShortestDelay => "sed",
        /// `nq`, never queue: a backend without active connections if there is one, otherwise the rule of `sed`.
        NeverQueue => "nq",
    }
}
