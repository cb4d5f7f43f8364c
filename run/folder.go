package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/internal/disk"
	"octet/internal/writers"
	"octet/tokenizer"
	"octet/train"
)

// The files of a run folder.
const (
	configFile     = config.RunFile
	dataFile       = "data.json"
	choicesFile    = "choices.json" // algorithms that the device chose by timing, see backend.Chooser
	metricsFile    = writers.MetricsFile
	timingFile     = writers.TimingFile
	logFile        = writers.RunLogFile
	traceFile      = "trace.json"
	checkpointsDir = checkpoint.Dir
	lockFile       = checkpoint.LockFile
	logsDir        = "logs" // of ranks above 0 that are processes
	rankLogFile    = logsDir + "/rank-%05d.log"
)

// folder is a run folder that this process has locked.
type folder struct {
	Dir     string
	unlock  func() error
	info    fs.FileInfo // of the folder itself
	recipes []string    // names of the recipe files in it
	made    string      // the topmost folder that this process created; empty if none
}

// sharedFolder returns the run folder for a rank above 0: rank 0 makes and locks it.
func sharedFolder(dir string) *folder { return &folder{Dir: dir, unlock: func() error { return nil }} }

// ErrRunExists is the error for a new run in a folder that already holds one: name another
// folder, or set [Options].Resume.
var ErrRunExists = errors.New("already holds a run")

// create makes a run folder, which must not hold other files, and writes the resolved
// config into it.
func create(dir string, c train.Config) (*folder, error) {
	f := &folder{Dir: dir, made: topmostMissing(dir)}
	if err := disk.MakeDirs(dir); err != nil {
		f.removeMade()
		return nil, fmt.Errorf("the run folder cannot be made: %w; name another one", err)
	}
	if err := f.lock(); err != nil {
		f.removeMade()
		return nil, err
	}
	// Check under the lock, so that only one of two processes makes the run.
	if err := vacant(dir); errors.Is(err, ErrRunExists) {
		return nil, errors.Join(err, f.unlock())
	} else if err != nil {
		return nil, errors.Join(err, f.removeLock())
	}
	if err := f.writeConfig(c); err != nil {
		return nil, errors.Join(err, f.discard())
	}
	return f, nil
}

// checkVacant returns the error of create for a folder that exists and cannot take a new
// run, without changing the folder.
func checkVacant(dir string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil // create returns the error
	}
	err := vacant(dir)
	if !errors.Is(err, ErrRunExists) {
		return err
	}
	unlock, lockErr := checkpoint.Lock(dir)
	if lockErr != nil {
		return lockErr
	}
	return errors.Join(err, unlock())
}

// vacant returns an error if dir holds a run or files of others, which discard could not
// tell from those of the run. It allows hidden files (the lock, files of file systems),
// lost+found of a mounted volume, the redirected output of a shell or scheduler, and an
// empty checkpoints folder, where a volume may be mounted before the run begins.
func vacant(dir string) error {
	if Exists(dir) {
		return fmt.Errorf("%s %w", dir, ErrRunExists)
	}
	if name := leftover(dir); name != "" {
		return fmt.Errorf("%s holds %s but no %s: put the run's %[3]s back and resume it, or move %[2]s away, or name another folder", dir, name, configFile)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the run folder cannot be read: %w; name another one", err)
	}
	for _, e := range entries {
		output := e.Name() != logFile && slices.Contains([]string{".log", ".out", ".err"}, filepath.Ext(e.Name()))
		if !output && !ofFileSystem(e) && e.Name() != checkpointsDir {
			return fmt.Errorf("%s holds %.80q, which is not part of a run: name a new or an empty folder", dir, e.Name())
		}
	}
	return nil
}

// leftover returns the name of a run's file in a folder without config.toml; empty if there
// is none.
func leftover(dir string) string {
	checkpoints := filepath.Join(dir, checkpointsDir)
	if info, err := os.Lstat(checkpoints); err == nil {
		entries, err := os.ReadDir(checkpoints)
		// Resume refuses a symlink, so a run must not begin with one.
		if err != nil || !info.IsDir() || len(slices.DeleteFunc(entries, ofFileSystem)) > 0 {
			return checkpointsDir
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, metricsFile)); err == nil {
		return metricsFile
	}
	return ""
}

// ofFileSystem reports whether an entry of a folder is hidden, or is the lost+found of a
// mounted volume.
func ofFileSystem(e fs.DirEntry) bool {
	return strings.HasPrefix(e.Name(), ".") || e.Name() == "lost+found"
}

// resume locks an existing run folder and removes unfinished checkpoints from it.
func resume(dir string) (*folder, error) {
	if !Exists(dir) {
		return nil, notARun(dir)
	}
	// Reject symlinks, which could truncate a user's file, and pipes, whose reads block.
	for _, name := range []string{metricsFile, timingFile, logFile, traceFile, dataFile, choicesFile} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err == nil && !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a regular file: put one in its place, or remove it", filepath.Join(dir, name))
		}
	}
	f := &folder{Dir: dir}
	switch info, err := os.Lstat(f.checkpoints()); {
	case err != nil || info.IsDir():
	case info.Mode()&fs.ModeSymlink != 0: // two runs with links to one folder would remove each other's checkpoints
		return nil, fmt.Errorf("%s is a link, so the run would remove old checkpoints elsewhere: replace it with the folder; to keep a run on another disk, link the whole run folder", f.checkpoints())
	default:
		return nil, fmt.Errorf("%s is not a folder: replace it with the folder of the run's checkpoints, or remove it", f.checkpoints())
	}
	if err := f.lock(); err != nil {
		return nil, err
	}
	if err := checkpoint.RemovePartial(f.checkpoints()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lock locks the folder for this process.
func (f *folder) lock() (err error) {
	if f.unlock, err = checkpoint.Lock(f.Dir); err != nil {
		return err
	}
	if f.info, err = os.Stat(f.Dir); err != nil {
		return errors.Join(err, f.unlock())
	}
	return nil
}

// checkInPlace returns an error if the folder was moved or replaced. Open files move with
// the folder, but checkpoints would be written and removed in the folder that replaced it.
func (f *folder) checkInPlace() error {
	if info, err := os.Stat(f.Dir); err == nil && os.SameFile(info, f.info) {
		return nil
	}
	return fmt.Errorf("the run folder %s was moved, removed or replaced: if it was renamed, resume the run under its new name", f.Dir)
}

// notARun returns the error for a folder without config.toml.
func notARun(dir string) error {
	if !exists(dir) {
		return fmt.Errorf("%s does not exist: name the folder of the run to resume", dir)
	}
	if name := leftover(dir); name != "" {
		return fmt.Errorf("%s cannot be resumed: it holds %s but no %s; put the run's %[3]s back, or start a new run in another folder", dir, name, configFile)
	}
	return fmt.Errorf("%s is not a run folder: it has no %s", dir, configFile)
}

// Exists reports whether dir holds a run, which Start can resume.
func Exists(dir string) bool { return exists(configPath(dir)) }

// configPath returns the path of the run's resolved config.
func configPath(dir string) string { return filepath.Join(dir, configFile) }

// checkpoints returns the folder of the run's checkpoints.
func (f *folder) checkpoints() string { return f.path(checkpointsDir) }

func (f *folder) path(name string) string { return filepath.Join(f.Dir, name) }

// Close unlocks the folder.
func (f *folder) Close() error { return f.unlock() }

// discard undoes create if nothing was started. It removes what this process made and
// leaves a folder that existed before as it was.
func (f *folder) discard() (err error) {
	names := slices.Concat([]string{dataFile, metricsFile, timingFile, logFile, logsDir}, tokenizer.FileNames, f.recipes)
	if f.made != "" {
		entries, readErr := os.ReadDir(f.Dir)
		err = readErr
		names = nil
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	// Remove config.toml last: until then the folder holds a run, also if this process is killed.
	names = append(slices.DeleteFunc(names, func(name string) bool { return name == configFile || name == lockFile }), configFile)
	for _, name := range names {
		err = errors.Join(err, disk.RemoveAll(f.path(name)))
	}
	// Keep the lock to the end: another process may be waiting to make its run here.
	err = errors.Join(err, f.removeLock())
	f.removeMade()
	return err
}

// removeLock unlocks the folder and removes the lock file.
func (f *folder) removeLock() error {
	if runtime.GOOS == "windows" { // Windows does not remove open files
		return errors.Join(f.unlock(), disk.RemoveAll(f.path(lockFile)))
	}
	return errors.Join(disk.RemoveAll(f.path(lockFile)), f.unlock())
}

// removeMade removes the folders that this process made, from the innermost outwards. A
// folder that another process has used meanwhile stays.
func (f *folder) removeMade() {
	if f.made == "" {
		return
	}
	for dir := f.Dir; ; dir = filepath.Dir(dir) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return // not empty
		}
		if dir == f.made {
			return
		}
	}
}

// topmostMissing returns the first folder on the path to dir that does not exist.
func topmostMissing(dir string) (top string) {
	for dir = filepath.Clean(dir); !exists(dir) && dir != top; dir = filepath.Dir(dir) { // an absent drive is its own parent
		top = dir
	}
	return top
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// writeConfig writes or replaces config.toml and the recipe files that it names.
func (f *folder) writeConfig(c train.Config) error {
	text, err := config.Marshal(c)
	if err != nil {
		return err
	}
	for name, text := range config.RecipeFiles(c) {
		f.recipes = append(f.recipes, name)
		if err := disk.WriteAtomic(f.path(name), []byte(text)); err != nil {
			return err
		}
	}
	return disk.WriteAtomic(configPath(f.Dir), text)
}

// recordData writes data.json and the files of the tokenizer. If data.json exists, recordData
// returns an error unless the corpus is the one that the run began with.
func (f *folder) recordData(c *data.Corpus) error {
	err := CheckCorpus(f.Dir, c.Info)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.Tokenizer != nil {
		for _, x := range c.Tokenizer.Files {
			if err := disk.WriteAtomic(f.path(x.Name), x.Data); err != nil {
				return err
			}
		}
	}
	text, err := json.MarshalIndent(c.Info, "", "  ")
	if err != nil {
		return err
	}
	return disk.WriteAtomic(f.path(dataFile), append(text, '\n'))
}

// CheckCorpus returns an error unless the corpus is the one that the run in dir began with.
// The error wraps fs.ErrNotExist if the run has no record of its corpus.
func CheckCorpus(dir string, info data.Info) error {
	name := filepath.Join(dir, dataFile)
	mine, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	// The data.json of the same corpus has the same length, up to what another version of
	// Octet wrote.
	text, whole, err := readUpTo(name, 1<<20+2*int64(len(mine)))
	if err != nil {
		return err
	}
	if !whole {
		return fmt.Errorf("%s: the file is far larger than the %d bytes that this corpus needs: restore the run's own file, or remove it", name, len(mine))
	}
	var saved data.Info
	if err := json.Unmarshal(text, &saved); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return data.CheckSame(saved, info)
}

// choices returns the algorithms that the run's device chose by timing; nil if there are none.
func (f *folder) choices() ([]byte, error) {
	text, whole, err := readUpTo(f.path(choicesFile), maxChoices)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !whole { // a file that Octet did not write: the device chooses again
		return nil, nil
	}
	return text, err
}

// maxChoices bounds choices.json, which has some hundred bytes for each GEMM of a program.
const maxChoices = 16 << 20

// readUpTo reads at most limit+1 bytes of a file; whole is false if the file is longer than
// limit.
func readUpTo(name string, limit int64) (text []byte, whole bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, limit+1))
	return text, int64(len(text)) <= limit, err
}

// recordChoices writes choices.json, from which a resumed run reads them.
func (f *folder) recordChoices(choices []byte) error {
	if choices == nil {
		return nil
	}
	return disk.WriteAtomic(f.path(choicesFile), choices)
}
