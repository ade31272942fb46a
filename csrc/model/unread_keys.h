// Keys that change what a transformer computes, in files of families that do without them.
#pragma once

namespace specdec {

class KeyReader;
struct Architecture;

// Refuses a file that asks for a computation which its family does not have here: one of the
// format's keys that nobody read so far, with a value that is not without effect. Call it when a
// model's keys are read. Keys that come with tensors of their own need no entry, since a tensor
// that is not part of the family is refused; keys that are not known are passed over.
// Throws GgufError naming the key and its value.
void refuse_unread_keys(const KeyReader& keys, const Architecture& traits);

}  // namespace specdec
