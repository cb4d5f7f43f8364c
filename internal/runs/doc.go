// Package runs reads run folders in order to show them: the configuration,
// metrics.jsonl, timing.jsonl and run.log. It writes nothing and takes no lock, so
// that it may read a run in progress, and [Run.Update] reads only what is new.
//
// A run folder may be damaged, of another version, or made to do harm. The package never
// fails because of its content: [Run.Problems] lists the parts that it left out.
package runs
