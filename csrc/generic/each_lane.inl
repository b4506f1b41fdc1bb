// Joins the lanes of 16 vectors, each into the lane of its number, where a tier has no better way. Included by its vec.h.
inline I max_of_each(const I (&v)[kLanes]) {
  alignas(64) int32_t lanes[kLanes];
  for (int i = 0; i < kLanes; i++) lanes[i] = int_max_lanes(v[i]);
  return int_load(lanes);
}
inline I sum_of_each(const I (&v)[kLanes]) {
  alignas(64) int32_t lanes[kLanes];
  for (int i = 0; i < kLanes; i++) lanes[i] = int_sum_lanes(v[i]);
  return int_load(lanes);
}
