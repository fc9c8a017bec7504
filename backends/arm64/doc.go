// Package arm64 has the vector backend of ARM processors, "neon". Everywhere else, and with the build tag noasm, the package
// registers the name and says why it cannot run.
//
// # How it is made
//
// The assembly and its declarations are written by the program in ../_gen/arm64 (go generate), which is where the algorithms are
// explained. Go's assembler lacks vector arithmetic on float32 but for the fused multiply-add; those instructions are WORD
// lines with their disassembly as the comment. A test encodes every comment again from the fields in the architecture
// manual, and with an assembler where one is at hand.
//
// NEON is part of every arm64 processor, so nothing is detected. Its arithmetic is IEEE 754 with subnormals, as Go sets it up;
// VFMLA rounds once. There is no use of later extensions: bf16 products round differently from the contract.
//
// # Products
//
// The 32 accumulators of a dot product are eight registers, so that the 32 registers hold 16 accumulators, and weights and
// activations beside them. A function always takes two rows:
//
//	vectors  lanes at a time  accumulators
//	1        32               2 rows x 1 vector  x 8 registers
//	2        16               2 rows x 2 vectors x 4 registers
//	4        8                2 rows x 4 vectors x 2 registers
//
// The more vectors, the fewer lanes at a time and the more sweeps over the columns; lanes do not meet before the final tree, so
// the order of every sum is the contract's. Accumulators start and end in memory, 24 rows at a time. That makes everything else
// simple: panels of 1024 columns, whose activations stay in the first-level cache, columns after the last whole block of 32,
// which plain Go adds, and the tree, which is one function for all formats. One vector takes whole rows, which memory
// delivers best in one go.
//
// A bfloat16 becomes a float32 by ZIP with zero: one instruction for four weights. MXFP4 nibbles go into order by two ZIP, and
// each looks up the upper two bytes of its scaled weight, by two TBL, in the tables of its scale byte: 256 of them,
// computed by the definition, so that the subnormal scale 0, the overflowing 254 and the refused 255 need no code. From there on
// it is bfloat16, and for more than one vector rows are decoded to bfloat16 once and go through its functions.
// float16, which the released checkpoint does not use, is decoded to float32.
//
// Instructions in the inner loop, loop control included, for 32 weights of one row and one vector (of several: divided by their
// number), and the vector instructions other than loads among them. The eight VFMLA are the floor.
//
//	             1 vector     2 vectors    4 vectors
//	F32          16.5 (8)     15 (8)       15 (8)
//	BF16         22.5 (16)    18 (12)      17 (10)
//	MXFP4        35.5 (28)    as BF16, and 10.5 (6) for decoding at 2, 5.25 (3) at 4
//
// Transposed keeps 16 registers of results and goes down the rows, with 64 columns for one vector, 32 for two and 16 for four;
// what is left of the columns, at most 63, is plain Go. KDA takes 32 values at a time down the keys twice, and all
// tokens before the next 32, so that this part of the state, 16 KiB, stays in the first-level cache. The first time it only
// reads: decaying the state again in the second costs 8 multiplications for 32 elements where storing it would cost 4 stores of
// register pairs and their way to the cache. A state whose width is no multiple of 32 is left to the generic backend, as is
// a convolution of other than four taps.
//
// # Element-wise functions
//
// Exp, Sigmoid, SiLU, Tanh and SiTU are those of core/kernel/exact.go, operation by operation. Both sides of a condition are
// computed and VBSL chooses. The generator takes a body as expressions, gives their values registers, and interleaves the
// instructions of two bodies, eight elements, so that one computes while the other waits. What is left after the last
// eight elements goes through the same code in a padded block.
//
// For eight elements: Sigmoid 120 instructions, Decay 199, SiTU 387, Exp in Softmax 79.
//
// # What is not known
//
// All of this was tested under emulation and never timed on hardware. The numbers of rows, the panels and the absence of
// prefetches are by calculation, not by measurement.
package arm64

//go:generate go run -C ../_gen ./arm64 ../arm64
