package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
	"github.com/k3infer/k3/presets/demo"
)

// fabricateFlags are the flags of k3 fabricate that are not sizes.
type fabricateFlags struct {
	geometry, experts, trunk, tokenizer string
	fullAttention                       []int
	options                             fabricate.Options
	quiet                               bool
}

func fabricateCommand() *cobra.Command {
	var f fabricateFlags
	var given checkpoint.Config // only what flags say
	cmd := &cobra.Command{
		Use:   "fabricate [flags] DIR",
		Short: "Make a synthetic checkpoint of any size",
		Long: "Make a checkpoint in DIR with random weights, to try the program, a disk or a memory setting on it. The geometries are\n" +
			"tiny (5 MB), small (200 MB), mid (6 GB, mostly experts) and full, the released one (1.56 TB); each size can be changed.\n" +
			"With --sparse, the routed experts and most of the large tensors are holes: even the full geometry then takes less than\n" +
			"200 MB of the disk and a few seconds. The same flags give the same files on every system.\n" +
			"Files are made in DIR/partial and get their names when all of them are complete.",
		Example: "  k3 fabricate --geometry full --sparse k3full && k3 run --model k3full --preset ultra --ids 1,2,3\n" +
			"  k3 fabricate --geometry mid --experts 64 --top-k 4 --seed 7 k3mid",
		Args: oneArgument("a directory"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0], &given) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.geometry, "geometry", "tiny", "`NAME` of the sizes to begin with: "+strings.Join(fabricate.Geometries(), ", "))
	flags.BoolVar(&f.options.Sparse, "sparse", false, "leave holes instead of most weights")
	flags.Uint64Var(&f.options.Seed, "seed", 1, "`N` that chooses the weights")
	flags.IntVar(&f.options.Shards, "shards", 0, "`N` files that hold weights; 0 is one a layer, as released")
	flags.StringVar(&f.experts, "format", "mxfp4", "`TYPE` of the routed experts: mxfp4, bf16, f16 or f32")
	flags.StringVar(&f.trunk, "trunk", "bf16", "`TYPE` of the other matrices: bf16, f16 or f32")
	flags.StringVar(&f.tokenizer, "tokenizer", "",
		"demo, none, or the `DIR` of a model to copy it from (default demo, or none where the vocabulary is too small)")
	flags.BoolVar(&f.options.Force, "force", false, "replace the checkpoint that is in DIR")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "write no progress to stderr")
	for _, s := range sizes(&given) {
		switch to := s.to.(type) {
		case *int:
			flags.IntVar(to, s.name, 0, "`N`: "+s.usage)
		case *float32:
			flags.Float32Var(to, s.name, 0, "`X`: "+s.usage)
		case *bool:
			flags.BoolVar(to, s.name, false, s.usage)
		}
	}
	flags.IntSliceVar(&f.fullAttention, "full-attention", nil,
		"`NUMBERS` of the MLA layers, from 1; otherwise every fourth and the last (full_attn_layers)")
	return cmd
}

// sizeFlag is a flag for a field of a model's configuration.
type sizeFlag struct {
	to          any // the field
	name, usage string
}

// sizes are the flags for the fields of c, in an order that is always the same.
func sizes(c *checkpoint.Config) []sizeFlag {
	return []sizeFlag{
		{&c.Hidden, "hidden", "width of the residual (hidden_size)"},
		{&c.Layers, "layers", "layers (num_hidden_layers)"},
		{&c.Vocab, "vocab", "ids (vocab_size)"},
		{&c.KDA.Heads, "kda-heads", "heads of KDA"},
		{&c.KDA.HeadDim, "kda-head-dim", "width of a KDA head"},
		{&c.KDA.ConvKernel, "conv-kernel", "taps of the convolution (short_conv_kernel_size)"},
		{&c.KDA.GateLowerBound, "gate-lower-bound", "decay bound of KDA (gate_lower_bound)"},
		{&c.MLA.Heads, "mla-heads", "heads of MLA (num_attention_heads)"},
		{&c.MLA.QueryRank, "query-rank", "rank of MLA's queries (q_lora_rank)"},
		{&c.MLA.LatentRank, "latent-rank", "rank of MLA's keys and values (kv_lora_rank)"},
		{&c.MLA.NopeDim, "nope-dim", "part of a key that is a head's own (qk_nope_head_dim)"},
		{&c.MLA.RopeDim, "rope-dim", "part of a key that all heads share (qk_rope_head_dim)"},
		{&c.MLA.ValueDim, "value-dim", "width of a value of MLA (v_head_dim)"},
		{&c.MLA.OutputGate, "output-gate", "whether MLA has a gate (mla_use_output_gate)"},
		{&c.MoE.Experts, "experts", "routed experts of a layer (num_experts)"},
		{&c.MoE.TopK, "top-k", "routed experts of a token (num_experts_per_token)"},
		{&c.MoE.Shared, "shared-experts", "shared experts of a layer (num_shared_experts)"},
		{&c.MoE.Latent, "latent", "width of what routed experts see (routed_expert_hidden_size)"},
		{&c.MoE.Intermediate, "intermediate", "inner width of an expert (moe_intermediate_size)"},
		{&c.MoE.ScalingFactor, "routed-scaling", "factor of the routed experts' weights (routed_scaling_factor)"},
		{&c.MoE.Renormalize, "renormalize", "whether the routed experts' weights add up to one (moe_renormalize)"},
		{&c.MoE.LatentNorm, "latent-norm", "whether the routed experts' sum is normalised (latent_moe_use_norm)"},
		{&c.DenseLayers, "dense-layers", "first layers that have a dense MLP (first_k_dense_replace)"},
		{&c.DenseIntermediate, "dense-intermediate", "inner width of the dense MLP (intermediate_size)"},
		{&c.ResidualBlock, "residual-block", "layers between snapshots of the residual (attn_res_block_size)"},
		{&c.NormEps, "norm-eps", "epsilon of the norms (rms_norm_eps)"},
		{&c.SituBeta, "situ-beta", "bound of the activation's gate (activation_situ_beta)"},
		{&c.SituLinearBeta, "situ-linear-beta", "bound of the activation's linear part (activation_situ_linear_beta)"},
		{&c.MaxPositions, "max-positions", "longest context (max_position_embeddings)"},
	}
}

// config is the geometry that the flags ask for.
func (f *fabricateFlags) config(flags *pflag.FlagSet, given *checkpoint.Config) (*checkpoint.Config, error) {
	c := fabricate.Geometry(f.geometry)
	if c == nil {
		return nil, ui.Usagef("--geometry: %q is none of %s%s", f.geometry, strings.Join(fabricate.Geometries(), ", "),
			suggestion("", f.geometry, fabricate.Geometries()))
	}
	from := sizes(given)
	for i, s := range sizes(c) {
		if !flags.Changed(s.name) {
			continue
		}
		switch to := s.to.(type) {
		case *int:
			*to = *from[i].to.(*int)
		case *float32:
			*to = *from[i].to.(*float32)
		case *bool:
			*to = *from[i].to.(*bool)
		}
	}
	const most = 4096
	if c.Layers < 1 || c.Layers > most {
		return nil, ui.Usagef("--layers: %d is not from 1 to %d", c.Layers, most)
	}
	c.FullAttention = fabricate.FullAttention(c.Layers)
	if flags.Changed("full-attention") {
		clear(c.FullAttention)
		for _, n := range f.fullAttention {
			if n < 1 || n > c.Layers {
				return nil, ui.Usagef("--full-attention: %d is not from 1 to %d, the number of layers", n, c.Layers)
			}
			c.FullAttention[n-1] = true
		}
	}
	return c, nil
}

// parseType reads the name of a type of weights.
func parseType(flag, name string, allowed map[string]checkpoint.DType) (checkpoint.DType, error) {
	t, ok := allowed[name]
	if !ok {
		names := slices.Sorted(maps.Keys(allowed))
		return 0, ui.Usagef("--%s: %q is none of %s%s", flag, name, strings.Join(names, ", "), suggestion("", name, names))
	}
	return t, nil
}

// addTokenizer adds a tokenizer to the files and its ids to the configuration.
func (f *fabricateFlags) addTokenizer(c *checkpoint.Config) error {
	from := f.tokenizer
	var files disk.Files
	switch from {
	case "none":
	case "", presets.DemoModel:
		files = demo.Files()
	default:
		var err error
		if files, err = modelFiles(from, tokenizer.Names...); err != nil {
			return err
		}
	}
	if files != nil {
		t, err := tokenizer.Load(files)
		if err != nil {
			return err
		}
		switch {
		case t.Vocab() <= c.Vocab:
			return f.copyTokenizer(c, t, files)
		case from != "":
			return ui.Usagef("--tokenizer: %s has %d ids, the model %d (--vocab)", from, t.Vocab(), c.Vocab)
		}
	}
	if c.BOS >= c.Vocab {
		c.BOS = -1
	}
	c.EOS = slices.DeleteFunc(c.EOS, func(id int) bool { return id >= c.Vocab })
	return nil
}

func (f *fabricateFlags) copyTokenizer(c *checkpoint.Config, t *tokenizer.Tokenizer, files disk.Files) error {
	const most = 64 << 20
	f.options.Extra = map[string][]byte{}
	for _, name := range append(slices.Clone(tokenizer.Names), "tokenizer_config.json") {
		data, err := disk.ReadAll(files, name, most)
		switch {
		case err == nil:
			f.options.Extra[name] = data
		case !errors.Is(err, fs.ErrNotExist):
			return ui.Inputf("%w", err)
		}
	}
	c.BOS, c.EOS = -1, nil
	if id, ok := t.BOS(); ok {
		c.BOS = id
	}
	if id, ok := t.Special("<|end_of_msg|>"); ok {
		c.EOS = []int{id}
	}
	return nil
}

// run is k3 fabricate.
func (f *fabricateFlags) run(cmd *cobra.Command, dir string, given *checkpoint.Config) error {
	o := &f.options
	err := mayBeDirectory(dir)
	if err != nil {
		return err
	}
	floats := map[string]checkpoint.DType{"bf16": checkpoint.BF16, "f16": checkpoint.F16, "f32": checkpoint.F32}
	if o.Trunk, err = parseType("trunk", f.trunk, floats); err != nil {
		return err
	}
	floats["mxfp4"] = checkpoint.U8
	if o.Experts, err = parseType("format", f.experts, floats); err != nil {
		return err
	}
	if o.Config, err = f.config(cmd.Flags(), given); err != nil {
		return err
	}
	if err := f.addTokenizer(o.Config); err != nil {
		return err
	}
	o.Vision = f.geometry == "full"

	ctx, stop := interruptible(cmd.Context())
	defer stop()
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.quiet)
	defer line.Clear()
	started := time.Now()
	o.Progress = func(done, total int64) {
		now := time.Now()
		if line.Fresh(now) {
			return
		}
		rate := float64(done) / now.Sub(started).Seconds()
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		line.Show(now, fmt.Sprintf("writing %s of %s, %s/s, %s left", ui.Size(done), ui.Size(total), ui.Size(int64(rate)), ui.LongTime(left)))
	}
	r, err := fabricate.Write(ctx, dir, *o)
	line.Clear()
	switch {
	case errors.Is(err, fabricate.ErrExists):
		return ui.WithCode(ui.ExitUsage, ui.WithHint(err, "--force replaces a checkpoint that is there"))
	case errors.Is(err, fabricate.ErrOptions), errors.Is(err, fabricate.ErrForeign), errors.Is(err, checkpoint.ErrConfig):
		return ui.WithCode(ui.ExitUsage, err)
	case err != nil:
		return err
	}
	holes := ""
	if o.Sparse {
		holes = fmt.Sprintf(", %s without the holes", ui.Size(r.Written))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s in %s, %s%s\n",
		dir, ui.Plural(r.Tensors, "tensor", "tensors"), ui.Plural(r.Shards, "shard", "shards"), ui.Size(r.Bytes), holes)
	return err
}
