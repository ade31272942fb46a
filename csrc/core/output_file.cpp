#include "core/output_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/printable.h"

namespace specdec {
namespace {

namespace fs = std::filesystem;

fs::path native_path(const std::string& path) {
#ifdef _WIN32
  return fs::u8path(path);
#else
  return fs::path(path);
#endif
}

#ifdef _WIN32
constexpr const char* kSeparators = "/\\";
#else
constexpr const char* kSeparators = "/";
#endif

std::string native_text(const fs::path& path) {
#ifdef _WIN32
  const auto text = path.u8string();
  return std::string(text.begin(), text.end());
#else
  return path.string();
#endif
}

// What a path that is a link stands for, also where nothing is there yet: the link stays, and the
// bytes go to the disk that it was made for.
std::string followed(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux follows; a circle stays a link
  fs::path at = native_path(path);
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(at, error); ++i) {
    const fs::path target = fs::read_symlink(at, error);
    if (error) break;
    at = at.parent_path() / target;  // the target alone where it is absolute
  }
  return native_text(at);
}

// Fails where a file of that name exists.
std::FILE* create_new(const std::string& path) {
#ifdef _WIN32
  return _wfopen(native_path(path).c_str(), L"wbx");
#else
  return std::fopen(path.c_str(), "wbx");
#endif
}

std::string random_suffix() {
  std::random_device device;
  std::string digits;
  for (int i = 0; i < 8; ++i) digits += "0123456789abcdef"[device() % 16];
  return str('.', digits, ".part");
}

}  // namespace

void require_output_path(const std::string& given) {
  if (given.empty()) throw OutputError("cannot write the output: its path is empty");
  const std::string path = given.find('\0') == std::string::npos ? followed(given) : given;
  const auto refuse = [&path](const std::string& why) {
    throw OutputError(str("cannot write ", quoted(path, 4096), ": ", why));
  };
  if (path.find('\0') != std::string::npos) refuse("the path contains a zero byte");
  std::error_code ignored;
  if (fs::is_directory(native_path(path), ignored)) {
    refuse("it is a directory; give the path of a file in it");
  }
  if (fs::is_symlink(native_path(path), ignored)) refuse("it is a link to itself");
  // Renaming would replace a device such as /dev/null by the file.
  const fs::file_status status = fs::status(native_path(path), ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) refuse("it is not a regular file");
  const fs::path folder = native_path(path).parent_path();
  if (folder.empty() || fs::is_directory(folder, ignored)) return;
  const std::string name = quoted(path.substr(0, path.find_last_of(kSeparators)), 4096);
  if (fs::exists(folder, ignored)) refuse(name + " is a file, no folder");
  refuse("there is no folder " + name + "; create it first");
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  require_output_path(path_);
  path_ = followed(path_);
  temporary_ = path_ + random_suffix();
  errno = 0;
  file_ = create_new(temporary_);
  if (file_ == nullptr) fail("creating", errno);
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (temporary_.empty()) return;
  std::error_code ignored;
  fs::remove(native_path(temporary_), ignored);
}

void OutputFile::write(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  SPECDEC_CHECK(file_ != nullptr, "the file is complete");
  errno = 0;
  if (std::fwrite(data, 1, bytes, file_) != bytes) fail("writing", errno);
  written_ += bytes;
}

void OutputFile::write_zeros(std::size_t bytes) {
  static constexpr std::array<char, 4096> kZeros = {};
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kZeros.size());
    write(kZeros.data(), part);
    bytes -= part;
  }
}

void OutputFile::complete() {
  if (file_ == nullptr) return;
  errno = 0;
  // What the library still held back is written now, and may not fit.
  const int closed = std::fclose(std::exchange(file_, nullptr));
  if (closed != 0) fail("writing", errno);
}

void OutputFile::commit() {
  complete();
  std::error_code error;
  fs::rename(native_path(temporary_), native_path(path_), error);
  if (error) fail("renaming the finished file to", error.value());
  temporary_.clear();
}

void OutputFile::revoke() {
  std::error_code ignored;
  fs::remove(native_path(path_), ignored);
}

void OutputFile::fail(const char* doing, int code) const {
  const std::string reason =
      code != 0 ? std::system_category().message(code) : std::string("unknown reason");
  throw OutputError(str(doing, " ", quoted(path_, 4096), " failed after ", written_,
                        " bytes: ", reason, "; no partial file was left"));
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return fs::equivalent(native_path(a), native_path(b), ignored);
}

bool file_exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(native_path(path), ignored);
}

}  // namespace specdec
