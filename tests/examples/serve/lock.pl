# Locks for a Perl program, by one `onehold hold --serve`: onehold-json(5), REQUESTS.
use strict;
use warnings;
use IPC::Open2;
use JSON::PP;

my ($program, $file, $rounds) = @ARGV;
open2(my $answers, my $requests, $program, "hold", "--serve", "--die-with=$$");
my $last = 0;

# The next answer to this request. Others may come late, such as those about a lock that was lost.
sub ask {
    my (%request) = @_;
    syswrite($requests, encode_json(\%request) . "\n");
    while (my $line = readline($answers)) {
        my $answer = decode_json($line);
        return $answer if $answer->{id} == $request{id} && $answer->{event} ne "waiting";
    }
    die "onehold has ended: all locks are lost\n";
}

# Takes a lock, calls the code, and releases the lock.
sub with_lock {
    my ($name, $code) = @_;
    my $id = ++$last;
    my $held = ask(id => $id, command => "hold", names => [$name], wait => "forever");
    die "$held->{message}\n" if $held->{event} ne "held";
    my $error = eval { $code->($held->{hold}); 1 } ? "" : $@;
    my $end = ask(id => $id, command => "release");
    die $error if $error;
    die "lost $name\n" if $end->{event} ne "released";
}

with_lock("counter", sub {
    open(my $in, "<", $file) or die $!;
    my $number = <$in>;
    open(my $out, ">", $file) or die $!;
    print {$out} $number + 1;
    close($out) or die $!;
}) for 1 .. $rounds;
