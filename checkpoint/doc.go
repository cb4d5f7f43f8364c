// Package checkpoint saves and opens the checkpoints of a training run. A
// checkpoint is a folder that appears atomically, complete or not at all.
//
//	RUN/checkpoints/step-00000200/
//	    model.safetensors       weights under Hugging Face's Llama names
//	    config.json             their shape, as Hugging Face's LlamaConfig
//	    optimizer.safetensors   moments, master weights, scales, amax histories
//	    state.json              from the caller: step, data position, random state
//	    MANIFEST.json           size and SHA-256 of each file; written last
//
// [Save] writes the files to a hidden folder (.step-00000200.partial-…), syncs
// them to disk, writes and syncs the manifest, then renames the folder. A crash
// or power cut at any time therefore leaves every folder named step-… complete.
// The manifest's sizes and checksums detect later damage, such as a truncated
// copy or a flipped bit. [Newest] opens the newest valid checkpoint and lists
// the newer ones it skipped, with the reasons.
//
// The ranks of a run can write a checkpoint together, to one folder of a file system that
// they share. Model and optimizer tensors are then in one file for each rank:
//
//	shard-00000-of-00004.safetensors   rows of matrices; all of the other tensors
//	shard-00001-of-00004.safetensors   rows of matrices
//	…
//
// Rank 0 calls [BeginSharded], each rank [WriteShard], which returns the size and the
// checksum for rank 0, and rank 0 [Sharded.Finish]. A shard's tensors are named model/NAME
// and optimizer/NAME. The metadata rows.model/NAME is "FROM:TO/ALL": the file has the rows
// FROM to TO, without TO, of a tensor of ALL rows. A tensor without this key is whole. The
// crash rules are those of Save. All readers take both layouts: [Tensors] joins the rows,
// and [Tensors.ReadRows] reads some of them, as a resumed run of another number of ranks
// needs.
//
// The package handles names and bytes, not training. The caller passes tensors
// as callbacks, so that no second copy of the model is in memory, and reads them
// back by name.
//
// A whole checkpoint is also a model folder that Hugging Face transformers loads.
// [OpenModel] opens model folders of other programs, sharded ones too. [Config]
// rejects models that Octet does not support and names the field.
// [Tensors.Match] compares names, shapes and formats with the config, and
// [Tensors.Weight] rejects values that are not finite.
//
// Only one process may use a run folder at a time: take [Lock] before Save, BeginSharded
// or Retain. WriteShard needs no lock.
package checkpoint
