// Package train trains a decoder on one or several ranks: configuration, optimizer,
// learning-rate schedule, the training step, and the state of a checkpoint. It writes
// no files: octet/run adds a run folder, records and resume.
//
//	c := train.Default()                      // or train.Preset("small")
//	c.Recipe = "fp8-smooth"
//	device, err := backend.Open("emu", backend.Options{})
//	job, err := train.NewJob(c, device.Spec()) // records the programs; needs no data, only the device's Spec
//	t, err := train.NewTrainer(job, corpus, device, nil)
//	err = t.Init(ctx)                         // or InitFrom, or Restore
//	for range c.Train.Steps {
//		result, err := t.Next(ctx)
//	}
//	loss, err := t.Evaluate(ctx)
//
// # A step
//
// The micro-batches run forward and backward and leave gradients, amaxes and
// channel maxima in stash tensors. The update program then reduces the maxima over
// ranks, checks that everything is finite, runs AdamW, pushes the histories and
// chooses scales, and casts the new weights, in this order. A step with a
// non-finite gradient norm or amax changes nothing and is reported as skipped.
//
// # Steps in flight
//
// On a device whose Run returns before the work is done (backend.Fetcher), a step
// ends with an asynchronous copy of loss, gradient norm and skip flag to the host.
// NextAhead issues the next step before it waits for that copy, so that the device
// computes while the host writes records. Two buffers alternate between steps. Next
// issues no further step, as is required before the state is read: by an evaluation,
// telemetry, a checkpoint or a change of recipe. On other devices NextAhead is Next.
//
// # Programs
//
//	micro      one variant for each position of a micro-batch in its step: the
//	           first writes gradients, others accumulate, the last reduces them
//	           over ranks
//	update     once per step
//	calibrate  once per recipe: a forward and backward with current scales that
//	           fills the empty histories
//	prepare    after loading: casts the weights from their masters
//	eval       forward with frozen scales: evaluation, and before each micro-batch the
//	           log-probabilities of train.objective = "dpo"
//	health     telemetry: forward and backward that measure casts and channels
//
// # Sharded optimizer state
//
// With train.zero_stage = 1, stage 1 of ZeRO (Rajbhandari et al. 2020), rank r holds
// the r-th of equal blocks of rows of each matrix's master and moments, and of their
// block scales. Rows of zeros pad the last blocks if ranks do not divide the rows. The
// last micro-batch reduce-scatters gradients to these rows, and AdamW updates them. Each
// rank casts its rows, and all-gathers join the codes: in FP8 half the bytes of masters in
// FP16. The masters are gathered instead if the codes have more bytes, if ranks do not
// divide the rows or a block of rows with one scale, in FP4 and with block scales in such a
// format as E4M3, and for the w3 of per-channel Smooth-SwiGLU, which is cast in every
// micro-batch. Cast weights, vectors and per-tensor scales are replicated. The results
// equal those of replicated state, except that the squared gradient norm is summed in
// another order, which changes its last bits and, through clipping, the weights.
// Checkpoints hold full tensors and do not depend on the sharding.
//
// At stage 2 every micro-batch reduce-scatters its gradients, and a rank stores only those of its rows.
// With several micro-batches the gradients of the ranks are then added first, those of the micro-batches
// last, in FP32: the last bits differ from stage 1.
//
// At stage 3 a rank stores only its rows of the cast weights, too. Every micro-batch gathers those of a
// block before the block, in the forward and again in the backward, while the block before it runs: two
// blocks' weights are in memory at a time ([backend.GatherShards]). The codes travel in the formats that
// GEMMs read; the w3 of per-channel Smooth-SwiGLU travels as the master, because each rank multiplies it
// by its own smoothing scales. Stored whole at every stage: vectors; the gradient of a table that
// embedding and head share; and the copies that cannot be split (see above: rows that the ranks or a
// block do not divide, and FP4).
//
// # Shared layers
//
// With train.tensor_parallel = n, groups of n consecutive ranks share each layer and read the same
// batches (tensor parallelism with sequence parallelism, see [nn.Split]). Ranks at the same
// place in their groups have the same parts of parameters; ZeRO divides such a part among them. The
// programs of all ranks are equal: an op that has a part of the vocabulary finds out which one from
// [backend.Control]. Checkpoints hold full tensors and do not depend on the layout.
//
// # Changes of recipe
//
// With precision.schedule a run uses several recipes in turn, see [Phase]. Next
// changes the recipe when it is due and keeps weights, moments and the position in
// the data; the Trainer needs Reopen for it. A resumed run makes the same changes.
//
// # Other models
//
// Config.Network declares another model of tokens than the decoder, on layers of package
// nn; a Trainer then runs it with all of the above except files: see [Network] and
// [ErrOwnNetwork]. A model of other data records its programs itself, with [AdamW].
//
// # Caveats
//
// A Trainer is one rank, for one goroutine.
// Batches, random bits and the order of sums depend on the configuration alone, so
// a run is reproducible bit for bit on the same backend, device model and arithmetic
// (backend.Spec), with any number of threads. Another number of ranks or another
// split into micro-batches changes the order of FP32 sums.
package train
