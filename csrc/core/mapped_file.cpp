#include "core/mapped_file.h"

#include <cstdint>
#include <limits>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/printable.h"

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace specdec {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view reason) {
  throw GgufError(str("cannot open ", quoted(path, 4096), ": ", reason));
}

std::string system_message(int code) { return std::system_category().message(code); }

// Size as std::size_t, or an error for an empty file and for one larger than the address space.
std::size_t checked_size(const std::string& path, std::uint64_t size) {
  if (size == 0) fail(path, "the file is empty (0 bytes): download it again");
  if (size > std::numeric_limits<std::size_t>::max() / 2) {
    fail(path, str("its ", size, " bytes do not fit into this process's address space"));
  }
  return static_cast<std::size_t>(size);
}

#ifdef _WIN32

class Handle {
 public:
  explicit Handle(HANDLE handle) : handle_(handle) {}
  ~Handle() {
    if (valid()) CloseHandle(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  bool valid() const { return handle_ != nullptr && handle_ != INVALID_HANDLE_VALUE; }
  HANDLE get() const { return handle_; }

 private:
  HANDLE handle_;
};

std::wstring to_wide(const std::string& path) {
  const int bytes = static_cast<int>(path.size());
  const int length =
      MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, nullptr, 0);
  if (length <= 0) fail(path, "the path is empty or not valid UTF-8");
  std::wstring wide(static_cast<std::size_t>(length), L'\0');
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, wide.data(), length);
  return wide;
}

std::pair<const std::byte*, std::size_t> map_file(const std::string& path) {
  const std::wstring wide = to_wide(path);
  const DWORD attributes = GetFileAttributesW(wide.c_str());
  if (attributes == INVALID_FILE_ATTRIBUTES) {
    fail(path, system_message(static_cast<int>(GetLastError())));
  }
  if ((attributes & FILE_ATTRIBUTE_DIRECTORY) != 0) {
    fail(path, "it is a directory: give the path of a .gguf file");
  }
  const Handle file(CreateFileW(wide.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE,
                                nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr));
  if (!file.valid()) fail(path, system_message(static_cast<int>(GetLastError())));
  LARGE_INTEGER length;
  if (GetFileSizeEx(file.get(), &length) == 0) {
    fail(path, system_message(static_cast<int>(GetLastError())));
  }
  const std::size_t size = checked_size(path, static_cast<std::uint64_t>(length.QuadPart));
  const Handle mapping(CreateFileMappingW(file.get(), nullptr, PAGE_READONLY, 0, 0, nullptr));
  if (!mapping.valid()) fail(path, system_message(static_cast<int>(GetLastError())));
  const void* data = MapViewOfFile(mapping.get(), FILE_MAP_READ, 0, 0, size);
  if (data == nullptr) fail(path, system_message(static_cast<int>(GetLastError())));
  return {static_cast<const std::byte*>(data), size};
}

void unmap_file(const std::byte* data, std::size_t) { UnmapViewOfFile(data); }

void release_pages(const std::byte*, std::size_t) {}

#else

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::pair<const std::byte*, std::size_t> map_file(const std::string& path) {
  if (path.find('\0') != std::string::npos) fail(path, "the path contains a zero byte");
  // O_NONBLOCK: opening a FIFO must fail below instead of waiting for a writer.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail(path, system_message(errno));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) fail(path, system_message(errno));
  if (S_ISDIR(info.st_mode)) fail(path, "it is a directory: give the path of a .gguf file");
  if (!S_ISREG(info.st_mode)) fail(path, "it is not a regular file, so it cannot be mapped");
  const std::size_t size = checked_size(path, static_cast<std::uint64_t>(info.st_size));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) fail(path, str("mapping ", size, " bytes: ", system_message(errno)));
  return {static_cast<const std::byte*>(data), size};
}

void unmap_file(const std::byte* data, std::size_t size) {
  ::munmap(const_cast<std::byte*>(data), size);
}

void release_pages(const std::byte* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = begin / page * page;
  const std::uintptr_t last = (begin + bytes + page - 1) / page * page;
  // A failure costs memory, nothing else.
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

#endif

}  // namespace

void release_mapped_pages(const std::byte* data, std::size_t bytes) { release_pages(data, bytes); }

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  std::tie(data_, size_) = map_file(path_);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) unmap_file(data_, size_);
}

}  // namespace specdec
