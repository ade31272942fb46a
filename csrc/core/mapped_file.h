// A file mapped into memory, read-only. The one place (with the thread pool) that names an
// operating system. Pages are read on first touch; another process that shortens the file while it
// is mapped makes that touch fail (SIGBUS on POSIX), which no check can prevent: callers replace
// model files by renaming, never in place.
#pragma once

#include <cstddef>
#include <string>

namespace specdec {

class MappedFile {
 public:
  // `path` is UTF-8 on Windows and the system's bytes elsewhere. Throws GgufError with path and
  // reason: missing, no permission, a directory or device, empty.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Takes the pages that hold [data, data + bytes), part of a MappedFile, out of this process's
// memory. They stay readable: the next touch brings them back, usually from the system's cache.
// Does nothing where the system has no such call.
void release_mapped_pages(const std::byte* data, std::size_t bytes);

}  // namespace specdec
