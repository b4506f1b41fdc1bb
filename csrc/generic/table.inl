// The table of a tier that has no linear layers or attention of its own. The including file defines kName.
void linear(const LinearArgs& args, int32_t begin, int32_t end) { linear_generic(args, begin, end); }
void attention(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end) {
  attention_generic(args, kv_head, begin, end);
}

constexpr KernelTable kTable{kName,           linear, prepare,  prepare_tile, attention,
                             attention_merge, rope,   store_kv, vocab_stats,  exp_scaled};
