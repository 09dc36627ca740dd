// The least that a wrapper can do: lock a file, start a command, wait for it. With no command it only tries
// the lock.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count < 2) return 2;
    int file = open(words[1], O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return 125;
    if (flock(file, LOCK_EX | LOCK_NB) != 0) return 6;
    if (count < 3) return 0;
    pid_t child = vfork();
    if (child == 0) {
        execv(words[2], words + 2);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return 125;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
