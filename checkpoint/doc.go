// Package checkpoint keeps the state of a training run in folders that are
// whole or absent.
//
//	RUN/checkpoints/step-00000200/
//	    model.safetensors       weights under Hugging Face's Llama names
//	    config.json             their shape, as Hugging Face's LlamaConfig
//	    optimizer.safetensors   moments, masters, scales, histories
//	    state.json              the caller's: step, data position, random state
//	    MANIFEST.json           size and SHA-256 of each; written last
//
// [Save] writes into a hidden folder beside (.step-00000200.partial-…), syncs
// every file to disk, then the manifest, then renames the folder: at whatever
// instant the process or the power dies, a folder called step-… is complete.
// What happens to it afterwards (a copy that was cut short, a disk that lost a
// bit) the manifest's sizes and sums reveal: [Newest] opens the newest
// checkpoint that is whole and says which ones it passed over, and why.
//
// The package knows names and bytes, not training: the caller hands in
// tensors as callbacks, so that a model is never held twice in memory, and
// gets them back by name. A folder is also a model for others: Hugging Face
// transformers loads it, and [OpenModel] reads their folders, sharded ones
// too. [Config] refuses what Octet cannot compute and names the field;
// [Tensors.Match] compares names, shapes and formats with it, both ways, and
// [Tensors.Weight] refuses values that are not finite.
//
// One process uses a run folder at a time: take [Lock] before Save or Retain.
package checkpoint
