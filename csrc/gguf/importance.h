// Importance weights: how much the error of each column of a weight matrix matters, measured as the
// mean square of what it is multiplied with. Files are those of llama.cpp's imatrix tool in both
// its forms: GGUF (tensors NAME.in_sum2 [matrices, K] and NAME.counts [matrices]; imatrix.cpp), and
// the older one that has no header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace specdec {

class ImportanceFile {
 public:
  // Throws GgufError, naming the file, the entry and the byte offset where the file is damaged, a
  // sum is negative or not finite, or there are no entries.
  explicit ImportanceFile(const std::string& path);

  const std::string& path() const { return path_; }
  // Names of the texts that were measured on, and how many pieces of them; 0 where it is not told.
  const std::vector<std::string>& datasets() const { return datasets_; }
  std::uint32_t chunks() const { return chunks_; }
  std::size_t size() const { return entries_.size(); }

  // The weights of a tensor, one for each column of each of its `matrices` (experts; 1 else), or
  // nullptr where the file has none for it. Throws GgufError where it has another number of them.
  const std::vector<float>* find(const std::string& name, std::size_t matrices,
                                 std::size_t cols) const;

 private:
  void read_gguf(const std::string& path);
  void read_legacy(const std::string& path);
  void add(const std::string& name, std::vector<float> sums, const std::vector<float>& counts);

  std::string path_;
  std::vector<std::string> datasets_;
  std::uint32_t chunks_ = 0;
  std::unordered_map<std::string, std::vector<float>> entries_;
};

}  // namespace specdec
