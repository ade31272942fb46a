// Quantised types whose values come out of a short table ("codebook") of signed integers:
// value = d * scale * unit * values[code]. Also read by the files that are compiled with ISA flags,
// so nothing from std:: and nothing inline.
#pragma once

#include <stdint.h>

namespace specdec {

struct Codebook {
  int8_t values[16];  // by code
  int zero_point;     // what makes them unsigned
  int bits;           // of values[code] + zero_point
  float unit;         // a power of two
};

constexpr Codebook kCodebookIQ4 = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 128, 8, 1.0f};
// Twice the values of a 4-bit float with two exponent bits (e2m1).
constexpr Codebook kCodebookMXFP4 = {
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 12, 5, 1.0f};
// A magnitude of 3 bits, the sign in bit 3.
constexpr Codebook kCodebookIQ3_XXS = {
    {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}, 62, 7, 0.25f};
constexpr Codebook kCodebookIQ3_S = {
    {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, 15, 5, 1.0f};
// Three magnitudes, the sign in bit 2.
constexpr Codebook kCodebookIQ2 = {{8, 25, 43, 0, -8, -25, -43}, 43, 7, 0.125f};
// -1, 0, 1 shifted up by an eighth or, with bit 2, down.
constexpr Codebook kCodebookIQ1 = {{-7, 1, 9, 0, -9, -1, 7}, 9, 5, 0.125f};

}  // namespace specdec
