// Package train trains a decoder: configuration, optimizer, schedule, the step
// over one or several ranks, and the state that a checkpoint keeps.
//
//	c := train.Default()                      // or train.Preset("small")
//	c.Recipe = "fp8-smooth"
//	devices, err := backend.Open("emu", backend.Options{})
//	job, err := train.NewJob(c, devices[0].Spec()) // programs; needs no data, and of a device only what it can do
//	t, err := train.NewTrainer(job, corpus, devices)
//	err = t.Init(ctx)                         // or InitFrom, or Restore
//	for range c.Train.Steps {
//		result, err := t.Next(ctx)
//	}
//	loss, err := t.Evaluate(ctx)
//
// # A step
//
// The micro-batches run forward and backward and leave gradients, amaxes and
// channel maxima in stash tensors. The update program then, in this order,
// takes the maxima over ranks, decides whether everything is finite, runs
// AdamW, pushes the histories and chooses scales, and casts the new weights.
// A step that is not finite changes nothing and is reported as skipped.
//
// # A step ahead
//
// On a device that works on when Run has returned (backend.Fetcher), a step's loss,
// norm and skip are copied to the host behind it, and NextAhead gives the device the
// next step before it waits for them: the device goes on while the host writes
// records. Two copies take turns, so that a result is that of its step. Next waits
// with nothing ahead, as it must before anything looks at the state: an evaluation,
// health, a checkpoint, another recipe. On other devices the two are the same.
//
// # Programs
//
//	micro      one for each place of a micro-batch in its step: the first writes
//	           gradients, others add, the last reduces them over ranks
//	update     once a step
//	calibrate  once a recipe: a forward and backward with current scales that
//	           fills the empty histories
//	prepare    after loading: casts the weights from their masters
//	eval       forward with frozen scales
//
// # Ranks that share the optimizer's state
//
// With train.zero_stage = 1, the first stage of ZeRO (Rajbhandari et al. 2020), rank
// r holds the r-th part of the rows of each matrix's master and moments, and of
// their scales by block. The last micro-batch reduces gradients into these rows
// instead of giving every rank their sum, AdamW updates them, and masters are
// gathered where weights are cast. Codes, vectors, and the scale of a whole tensor
// every rank has. So a run is the same as without, but for the order in which the
// squares of the gradient's norm are added up: its last bits, and what clipping
// makes of them. Checkpoints hold whole tensors and do not show it.
//
// # Recipes in turn
//
// With precision.schedule a run computes under several recipes, one after the
// other: [Phase]. Next changes to the next one where it is due, with the
// weights, the moments and the place in the data as they are; the Trainer needs
// Reopen for it. Whatever a run does at a change it does again after a resume.
//
// # Caveats
//
// A Trainer is for one goroutine; it runs its ranks in goroutines of its own.
// Batches, random bits and the order of sums follow the configuration alone, so
// a run repeats bit for bit on the same backend, device model and arithmetic
// (backend.Spec), with any number of threads. Another number of ranks or another
// split into micro-batches changes the order of FP32 sums.
package train
